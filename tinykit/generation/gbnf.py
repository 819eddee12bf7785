from tinykit.generation.constraint import Constraint


def gbnf_to_lark(text: str) -> str:
    raise NotImplementedError
