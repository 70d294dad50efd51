"""Say that a target needs a checkout."""

from pipeline.scripting import job

with job(snakemake):
    from pipeline.errors import InputError

    raise InputError(
        f"{snakemake.rule} needs a checkout of Steptime, "
        f"installed with `make setup` or `pip install -e .`: "
        "an installed wheel predicts, but holds no code that judges predictions or makes packs"
    )
