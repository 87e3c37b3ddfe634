"""What a run needs, by closed formulas from the catalog's facts: parameters, memory, time, storage. Bytes and seconds
inside; GiB (2^30) and GB (10^9) are never mixed, and every printed figure has its unit."""
