"""The state as the API tells it and the console shows it: plain data, one shape each (api/answers.py).

What nobody has measured is None here and "unknown" on the page, never a guess. What belongs to a tenant the
asker does not see is left out here, once, and not by those who show it. Nothing here walks the history: what
it costs depends on what is asked for and on what is active now.
"""
