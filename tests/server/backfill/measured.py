"""The command line, and at the end its peak of memory: {"peak_kib": 140000}.

It is started from here, as a process begins with the peak of the one that starts it, and that of a test is large.
"""

import json
import resource
import subprocess
import sys

if __name__ == "__main__":
    code = subprocess.call([sys.executable, "-P", "-m", "embedline", *sys.argv[1:]])
    print(json.dumps({"peak_kib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}))
    sys.exit(code)
