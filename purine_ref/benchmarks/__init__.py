"""What `purine-ref bench` and the scripts in `bench/` measure: contestants that take turns, medians with their spread.

No figure is judged: a benchmark passes when it has run.
"""
