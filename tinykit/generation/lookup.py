class Lookup:
    def __init__(self, token_ids, *, minimum, maximum):
        self.ids = list(token_ids)
        self.minimum, self.maximum = minimum, maximum

    def extend(self, ids):
        self.ids += ids

    def draft(self):
        for n in (3, 2, 1):
            tail = self.ids[-n:]
            for at in range(len(self.ids) - n - 1, -1, -1):
                if self.ids[at : at + n] == tail:
                    found = self.ids[at + n : at + n + self.maximum]
                    return found if len(found) >= self.minimum else []
        return []
