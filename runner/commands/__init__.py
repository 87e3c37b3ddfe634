"""Commands: each a module, with its options in a table."""

import atexit
import gc

# Modules and plans have few reference cycles. Searching for them took a quarter of a check of many
# recipes; and of a check of one, a twentieth while modules are imported, and a sixth when Python
# ends.
gc.set_threshold(100_000, 20, 20)
atexit.register(gc.freeze)
