"""Turns a length in hours into steps, by the speed of a few steps on the machine that trains."""

from lib import prepared, ranks
from lib.config import Config, with_changes
from lib.machine.inputs import run_folders, saved_facts


def in_steps(config: Config) -> tuple[Config, list[str]]:
    """Gives a run of `training.hours` as many steps, and returns a line about them; once saved they stay the same."""
    hours = config.training.hours
    if not hours:
        return config, []
    kept = 0
    if ranks.is_first():
        places = run_folders(config.run.name, config.output_dir, config.run.resume_from)
        kept = saved_facts("identity", *places).get("training.max_steps", 0)
    kept = ranks.from_first(kept)
    if isinstance(kept, int) and kept > 0:
        line = f"training.hours {hours:g} -> training.max_steps {kept:,}, as when the run began"
        return _of_steps(config, kept), [line]
    from trainbook.launch import smoke  # the planner behind it takes a second, which few runs need

    print(f"Measuring the speed in {config.training.smoke_steps} steps.", flush=True)
    run = prepared.prepare(_of_steps(config, config.training.smoke_steps))
    speed = ranks.from_first(smoke.few_steps(run).steps_per_second * run.processes())
    steps = max(1, int(config.training.seconds * speed))
    line = (
        f"training.hours {hours:g} -> training.max_steps {steps:,} ({speed:.2f} steps/s; a tenth of the time "
        "is for validations, saves and the test)"
    )
    return _of_steps(config, steps), [line]


def _of_steps(config: Config, steps: int) -> Config:
    return with_changes(config, {"training.hours": 0.0, "training.max_steps": steps})
