"""The suites of golden cases: tables of what is tried, and how a case is made of each entry."""
