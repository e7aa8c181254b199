"""Planted faults: small wrong changes of the package, each of which the suites must notice.

`catalogue.ALL` lists them by family. `checks` finds the suites' own checks by name, `judge` runs those of one fault
while it is planted, and `scoreboard` prints who killed whom. No check is written for a fault: where one survives, the
suite has a hole, and it is the suite that gets the check.
"""
