"""Files that specdebug writes and reads again, each with the same care.

``record.py`` names a record in messages, replaces it whole and reads it typed; ``lock.py`` lets one process at a time
write to it and tells the others which; ``lines.py`` is a record that grows by a line. The journal of a search
(``trials/journal.py``) is sqlite's, under the same lock.
"""
