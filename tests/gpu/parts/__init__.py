"""The parts of a session on a GPU, ordered by what would hurt most; TINY is what a CPU computes of each."""

from tests.gpu.parts import bits, memory, panel, plans, ranks, smoke, speed
from tests.gpu.session import Part

PARTS = (
    Part(
        "smoke",
        "every workload and example: 20 steps, a kill, a resume, predict",
        90,
        smoke.ROWS,
        at_once=8,
    ),
    Part(
        "plans",
        "planned beside measured: peak, reserved, the driver's bytes, seconds a step",
        180,
        plans.ROWS,
        4,
    ),
    Part(
        "bits",
        "deterministic runs that stop and resume end in the same bits",
        120,
        bits.ROWS,
        at_once=7,
    ),
    Part("speed", "tokens a second and MFU beside a bare loop and SFTTrainer", 150, speed.ROWS),
    Part("memory", "memory that really runs out is borne at five places", 60, memory.ROWS),
    Part(
        "ranks",
        "two processes on one card over gloo, and two cards where there are two",
        60,
        ranks.ROWS,
    ),
    Part("panel", "the memory panel and the doctor beside nvidia-smi", 20, panel.ROWS),
)
TINY = tuple(Part(part.name, part.about, part.seconds, part.rows[:1]) for part in PARTS)
