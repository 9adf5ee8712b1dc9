"""What names and calls resolve to."""

from tests.workloads.codegraph.files import edges

PACKAGE = {
    "package__": "from .inner import f as g\nfrom .inner import *",
    "package__inner": "__all__ = ['h']\n__all__ += ['_k']\ndef f(): pass\ndef h(): pass\ndef _k(): pass\n"
    "def hidden(): pass",
    "user": "import package as p\nfrom package import g as z\nfrom package import h, _k, hidden\n"
    "def a(): p.g()\ndef b(): z()\ndef c(): h()\ndef d(): _k()\ndef e(): hidden()",
}
LEVELS = {
    "a__": "", "a__b__": "from . import near", "a__b__near": "def f(): pass", "a__far": "def h(): pass",
    "a__b__user": "from .. import far\nfrom .near import f\nfrom ... import beyond\ndef g():\n    far.h()\n    f()",
}  # fmt: skip
TYPES = """
class Engine:
    def start(self): return self
    def __enter__(self): return self
class Car:
    def __init__(self, spare: "Engine | None" = None):
        self.engine = None
        self.engine = Engine()
        self.spare = spare
    @property
    def main(self): return self.engine
    @classmethod
    def new(cls): return cls()
def a(): Car().engine.start()
def b(car: Car): car.spare.start()
def c():
    with Engine() as e: e.start()
def d(): Car.new().main.start().start()
def e():
    x = Engine
    x().start()
"""
UNCERTAIN = """
class A:
    def f(self): pass
class B:
    def f(self): pass
def g(): pass
def one(flag):
    x = A()
    if flag: x = B()
    x.f()
def two(g): g()
def three(): [g() for g in []]
def four(): (lambda g: g())(1)
def five(parameter):
    x = parameter
    x = A()
    x.f()
"""
ORDER = """
class A:
    def f(self): pass
    def g(self): pass
class B(A):
    def f(self): super().f()
class C(A):
    def f(self): pass
    def g(self): pass
class D(B, C):
    def f(self):
        super(D, self).f()
        self.g()
        self.nothing()
"""


def calls(**of):
    return {(head.replace("__", "."), "calls", tail) for head, tail in of.items()}


def test_imports_through_aliases_re_exports_stars_and_levels(tmp_path):
    found = edges(tmp_path / "one", "calls", **PACKAGE)
    inner = {"user__a": "f", "user__b": "f", "user__c": "h", "user__d": "_k"}
    assert calls(**{head: f"package.inner.{tail}" for head, tail in inner.items()}) <= found
    assert ("user.e", "calls", "name::hidden") in found
    found = edges(tmp_path / "two", **LEVELS)
    assert {("a.b.user.g", "calls", "a.far.h"), ("a.b.user.g", "calls", "a.b.near.f")} <= found
    assert {
        ("a.b.user", "imports", "a.far"),
        ("a.b", "imports", "a.b.near"),
        ("a", "contains", "a.b"),
    } <= found


def test_a_src_folder_and_a_root_that_is_a_package_are_found_by_absolute_imports(tmp_path):
    sources = {
        "src__pack__": "",
        "src__pack__x": "def f(): pass",
        "src__pack__y": "from pack.x import f\nf()",
    }
    assert ("src.pack.y", "calls", "src.pack.x.f") in edges(tmp_path / "one", **sources)
    root = tmp_path / "pack"
    assert ("pack.y", "calls", "pack.x.f") in edges(
        root, __="", x="def f(): pass", y="from pack.x import f\nf()"
    )


def test_a_folder_that_is_named_like_the_package_in_it_is_found_by_absolute_imports(tmp_path):
    """black/black: what stands in the folder of a checkout is the package, not the folder."""
    sources = {
        "pack__pack__": "import pack",
        "pack__pack__x": "import pack.z\ndef f(): pack.z.g()",
        "pack__pack__y": "from pack.x import f\nfrom pack import z\nf()\nz.g()",
        "pack__pack__z": "def g(): pass",
        "other__src__other__": "",
        "other__src__other__x": "from other.y import h\nimport pack\nh()\npack.z.g()",
        "other__src__other__y": "def h(): pass",
    }
    found = edges(tmp_path, "calls", **sources)
    assert found == {
        ("pack.pack.y", "calls", "pack.pack.x.f"),
        ("pack.pack.y", "calls", "pack.pack.z.g"),
        ("pack.pack.x.f", "calls", "pack.pack.z.g"),
        ("other.src.other.x", "calls", "other.src.other.y.h"),
        ("other.src.other.x", "calls", "pack.pack.z.g"),
    }


def test_a_folder_without_a_package_of_its_name_is_itself_what_is_imported(tmp_path):
    sources = {"space__one": "def f(): pass", "user": "import space.one\nspace.one.f()"}
    sources |= {"lib__pack__": "", "lib__pack__x": "from space.one import f\nf()"}
    found = edges(tmp_path, "calls", **sources)
    assert found == {("user", "calls", "space.one.f"), ("lib.pack.x", "calls", "space.one.f")}


def test_methods_through_super_the_resolution_order_and_unknown_bases(tmp_path):
    found = edges(tmp_path, "calls", "overrides", m=ORDER)
    assert {
        ("m.B.f", "calls", "m.A.f"),
        ("m.D.f", "calls", "m.B.f"),
        ("m.D.f", "calls", "name::nothing"),
    } <= found
    assert ("m.D.f", "calls", "m.C.g") in found  # C stands before A
    assert {t for _, relation, t in found if relation == "overrides"} == {"m.A.f", "m.A.g", "m.B.f"}
    source = (
        "import x\nclass A:\n    def f(self): pass\nclass B(x.Y, A):\n    def g(self): self.f()"
    )
    assert edges(tmp_path, "calls", m=source) == {("m.B.g", "calls", "name::f")}, (
        "an unknown base hides what is behind"
    )


def test_types_of_variables_attributes_and_results_where_they_are_certain(tmp_path):
    found = edges(tmp_path, "calls", m=TYPES)
    assert {(f"m.{name}", "calls", "m.Engine.start") for name in "abcde"} <= found
    assert ("m.d", "calls", "m.Car.new") in found
    assert {tail for _, _, tail in edges(tmp_path, "calls", m=UNCERTAIN)} == {"name::f", "name::g"}


def test_circles_of_imports_bases_and_values_end(tmp_path):
    one = "from b import x\nfrom b import Y\nclass Z(Y): pass\nx()\na = a.b\na()"
    found = edges(tmp_path, a=one, b="from a import x\nfrom a import Z\nclass Y(Z): pass")
    assert ("a", "calls", "name::x") in found
    assert not any(relation == "inherits_from" for _, relation, _ in found)
