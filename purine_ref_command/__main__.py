"""`python -m purine_ref_command`: the command where its script is not installed, or on no path."""

from purine_ref_command import main

main()
