"""Every Python that starts in a pod of the tests notes which GPUs it may see (see
`tests.parts.openshift.pods`).

It stands first on the pod's search path, and is imported by each interpreter before anything else.
"""

import json
import os
import sys
import time

if folder := os.environ.get("RECIPE_TEST_PROCESSES"):
    note = {
        "command": sys.orig_argv,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    with open(
        os.path.join(folder, f"{time.time_ns()}-{os.getpid()}.json"), "w", encoding="utf-8"
    ) as file:
        json.dump(note, file)
