"""How long a test waits for a process or thread of its own before it gives up.

Far longer than any of them takes: on a busy machine everything takes longer, and a test that fails then says
nothing about the code. A test that waits for something to happen waits for that, and not for a time.
"""

PATIENCE_S = 900.0
