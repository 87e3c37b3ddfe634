"""What a run will need, by closed formulas over the catalog: parameters, memory, time, storage. Bytes and seconds inside;
GiB (2^30) and GB (10^9) are never mixed, and each has its unit where it is printed."""

from runner.parts import Part

PART = Part(
    package=__name__,
    rules="rules",
    forecast="judging",
    formulas={"axolotl": "formulas"},
    hooks={"after_run": "calibration.after", "after_plan": "calibration.after_plan"},
)
