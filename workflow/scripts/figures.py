"""Draw the figures of a grid."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    import pandas as pd

    from pipeline.report.figures.gallery import Artifacts, draw_all
    from pipeline.report.grid import read_observations, with_gpus
    from pipeline.schemas import read_table
    from pipeline.transfer.costs import load_prices

    found = Artifacts(
        read_table(snakemake.input.summary, "summary"),
        read_observations(snakemake.input.hosts),
        with_gpus([*snakemake.input.models, *snakemake.params.shipped]),
        pd.concat(map(pd.read_parquet, snakemake.input.transfer)) if snakemake.input.transfer else pd.DataFrame(),
        load_prices(),
    )
    for name, reason in draw_all(found, Path(snakemake.output.folder)).items():
        print(f"  {name}: not drawn, {reason}", flush=True)
