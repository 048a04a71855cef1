"""python -m cpuinfer"""

from .cli import main

main()
