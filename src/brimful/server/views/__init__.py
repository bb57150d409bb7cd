"""The state as the API returns it and the console shows it: plain data, one shape each (api/answers.py).

Unmeasured values are None here and "unknown" on the page, never a guess. Data of tenants that the caller may
not see is left out here, once, not by the code that shows it. Nothing here walks the history: the cost
depends on what is asked for and on what is active now.
"""
