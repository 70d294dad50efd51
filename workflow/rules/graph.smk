# The execution graph of one training step: captured without a GPU, or traced on the device of this machine.

from pathlib import Path

from pipeline.yaml_text import NAME


wildcard_constraints:
    gpu=NAME,
    model=NAME,
    variant=r"[A-Za-z0-9_.\-]+",
    edit=r"[A-Za-z0-9_.\-]+",
    batch=r"\d+",
    family=r"[a-z0-9_]+",


POINT = FLOW.artifacts.point("{gpu}", "{model}", "{variant}", "{batch}")
GRAPH = FLOW.artifacts.graph("{model}", "{variant}", "{batch}")
EDITED_GRAPH = FLOW.artifacts.graph("{model}", "{variant}", "{batch}", "{edit}")


# Code that several rules name for their digest; tests/workflow/test_rule_code.py says what one lacks.
rule capture_graph:
    output:
        graph=GRAPH,
    log:
        f"{Path(GRAPH).parent}/logs/capture_graph.log",
    conda:
        "../envs/steptime.yaml"
    params:
        model=FLOW.captured_model,
        files=FLOW.captured_files,
        code=FLOW.code("capture_graph"),
    message:
        "Capture the graph of {wildcards.model} at batch {wildcards.batch}, without a GPU"
    script:
        "../scripts/capture_graph.py"


rule edit_graph:
    input:
        graph=GRAPH,
    output:
        graph=EDITED_GRAPH,
    log:
        f"{Path(EDITED_GRAPH).parent}/logs/edit_graph.log",
    conda:
        "../envs/steptime.yaml"
    params:
        edit=FLOW.edits,
        code=FLOW.code("edit_graph"),
    message:
        "Edit the graph of {wildcards.model} at batch {wildcards.batch}: {wildcards.edit}"
    script:
        "../scripts/edit_graph.py"


rule collect_step:
    output:
        trace=f"{POINT}/trace/kineto.json.gz",
        execution_trace=f"{POINT}/trace/execution_trace.json.gz",
        steps=f"{POINT}/trace/step_times.parquet",
    log:
        f"{POINT}/logs/collect_step.log",
    wildcard_constraints:
        gpu="local",
    conda:
        "../envs/steptime.yaml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        model=FLOW.section("model"),
        collect=FLOW.section("collect"),
        files=FLOW.files,
        code=FLOW.code("collect_step"),
    message:
        "Time and trace steps of {wildcards.model} at batch {wildcards.batch} on this machine"
    script:
        "../scripts/collect_step.py"


rule import_graph:
    input:
        execution_trace=rules.collect_step.output.execution_trace,
    output:
        graph=f"{POINT}/graph.parquet",
    log:
        f"{POINT}/logs/import_graph.log",
    wildcard_constraints:
        gpu="local",
    conda:
        "../envs/steptime.yaml"
    params:
        model=FLOW.section("model"),
        code=FLOW.code("import_graph"),
    message:
        "Read the graph of {wildcards.model} at batch {wildcards.batch} from its execution trace"
    script:
        "../scripts/import_graph.py"


rule convert_trace:
    input:
        trace=rules.collect_step.output.trace,
    output:
        events=f"{POINT}/events.parquet",
    log:
        f"{POINT}/logs/convert_trace.log",
    wildcard_constraints:
        gpu="local",
    conda:
        "../envs/steptime.yaml"
    params:
        code=FLOW.code("convert_trace"),
    message:
        "Read the events of {wildcards.model} at batch {wildcards.batch} from the profiler's trace"
    script:
        "../scripts/convert_trace.py"


rule map_calls:
    input:
        graph=FLOW.graph_of_point,
    output:
        calls=f"{POINT}/calls.parquet",
    log:
        f"{POINT}/logs/map_calls.log",
    conda:
        "../envs/steptime.yaml"
    params:
        gpu=FLOW.gpu,
        code=FLOW.code("map_calls"),
    message:
        "Map {wildcards.model} at batch {wildcards.batch} to device calls on {wildcards.gpu}"
    script:
        "../scripts/map_calls.py"
