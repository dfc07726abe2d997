#!/usr/bin/env python3
"""Judges the answers of `orrery plan`: is a plan faster, how long does a search take, does it end?

    experiments/answers/run.py sweep                       every uniform plan against the answer
    experiments/answers/run.py time --baseline OLD         wall time beside another build's
    experiments/answers/run.py random --count 300 --seed 1 random requests: each ends within 10 s
    experiments/answers/run.py catalog                     published models on 64 H100: 1 s each

Exit code 1 when a bar of README.md is missed. Needs the standard library only.
"""
import argparse
import pathlib
import sys

import catalog
import random_requests
import sweep
import times

HERE = pathlib.Path(__file__).resolve().parent


def parser():
    root = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = root.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--program", "--orrery", default=str(HERE.parents[1] / "build/release/orrery"),
        help="program to judge",
    )  # fmt: skip
    common.add_argument("--out", help="write the results as JSON")
    common.add_argument("--table", help="write the results as Markdown")

    s = modes.add_parser("sweep", parents=[common], help="every uniform plan against the answer")
    s.add_argument("--pairs", default=str(HERE / "pairs.csv"), help="models and clusters")
    s.add_argument("--only", help="rows of the pairs that match this pattern")
    s.add_argument("--rows", type=int, default=7000, help="plans priced for a pair, at the most")
    s.set_defaults(main=sweep.main)

    t = modes.add_parser("time", parents=[common], help="wall time beside another build's")
    t.add_argument("--baseline", required=True, help="program to compare with")
    t.add_argument("--rounds", type=int, default=5, help="runs of each; the best counts")
    t.add_argument("--limit", type=float, default=600, help="seconds after which a run is killed")
    t.set_defaults(main=times.main)

    r = modes.add_parser("random", parents=[common], help="random requests: does each end?")
    r.add_argument("--count", type=int, default=300)
    r.add_argument("--seed", type=int, default=1)
    r.add_argument("--first", type=int, default=0, help="begin with this request")
    r.add_argument("--bar", type=float, default=10, help="seconds in which each must end")
    r.add_argument("--limit", type=float, default=60, help="seconds after which one is killed")
    r.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                   help="what bar and limit count; cpu: on a machine that others use")  # fmt: skip
    r.add_argument("--budget", type=float, help="begin no request after so many seconds")
    r.set_defaults(main=random_requests.main)

    c = modes.add_parser("catalog", parents=[common], help="published models: how long each takes")
    c.add_argument("--bar", type=float, default=1, help="seconds that each may take")
    c.add_argument("--limit", type=float, default=60, help="seconds after which one is killed")
    c.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                   help="what the bar counts; cpu: on a machine that others use")  # fmt: skip
    c.set_defaults(main=catalog.main)
    return root


def main():
    arguments = parser().parse_args()
    return arguments.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
