"""One resident model for all programs of a user on a machine: its process, what is said to it, who says it.

`docs/worker-protocol.md` describes the messages. `TinySession(shared=True)` is the way in.
"""
