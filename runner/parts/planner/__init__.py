"""What a run will need, by closed formulas over the catalog: parameters, memory, time, storage. Bytes and seconds inside;
GiB (2^30) and GB (10^9) are never mixed, and each has its unit where it is printed."""
