"""Runs clients that people use against `surefoot serve`, and checks what they get.

    python benches/peers/serve_clients.py target/release/surefoot [--node DIR]

With --node, OpenAI's client for Node runs too, from the node_modules of DIR (`npm install openai` there).
Needs a Python environment with torch, transformers, openai, langchain-openai and lm-eval[api,hf]. Nothing is
downloaded: the model is a small one with random weights that the tests have, and the task of
lm-evaluation-harness is written here. Its scores through `local-completions` have to be those of its own
backend for transformers (`hf`) on the same model, up to rounding.

This is no lane of CI: the environment has more than a gigabyte, and a run takes minutes.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "crates/surefoot-models/tests/fixtures/llama-tiny"
KEY = "sk-clients"

PERSON = {
    "type": "object",
    "properties": {"Name": {"type": "string", "maxLength": 8}, "is_big": {"type": "boolean"}},
    "required": ["Name", "is_big"],
    "additionalProperties": False,
}

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def model_folder(parent):
    """A model that the server and transformers both load."""
    folder = pathlib.Path(parent) / "tiny"
    folder.mkdir()
    shutil.copy(FIXTURE / "model.safetensors", folder / "model.safetensors")
    # Its positions are rotations, so that it takes longer texts than it was made for.
    config = json.loads((FIXTURE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(config, max_position_embeddings=2048)))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 2048,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def byte_tokenizer():
    """A tokenizer whose tokens are the end of a text and all bytes but the last one."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    vocabulary, unseen = {"<|endoftext|>": 0}, 256
    for byte in range(255):
        vocabulary[chr(byte if byte in seen else unseen)] = byte + 1
        unseen += byte not in seen
    end = {"id": 0, "content": "<|endoftext|>", "special": True, "single_word": False}
    end.update(lstrip=False, rstrip=False, normalized=False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "fuse_unk": False, "byte_fallback": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


class Served:
    """A server of a model, while the block runs."""

    def __init__(self, program, folder):
        command = [program, "serve", str(folder), "--port", "0", "--json", "--name", "tiny"]
        environment = dict(os.environ, SUREFOOT_API_KEY=KEY)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)

    def __enter__(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("surefoot serve did not start")
        return json.loads(line)["url"]

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)


def check(what, is_so, seen=""):
    print(f"{'ok    ' if is_so else 'FAILED'}  {what}", flush=True)
    if not is_so:
        raise SystemExit(f"{what}: {seen}")


def openai_client(url):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    check("openai: models.list", [model.id for model in client.models.list()] == ["tiny"])
    messages = [{"role": "user", "content": "Hello"}]
    options = {"model": "tiny", "max_tokens": 40, "seed": 1}
    whole = client.chat.completions.create(messages=messages, **options)
    stream = client.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("openai: a chat, whole and streamed, is the same", text == whole.choices[0].message.content)
    # The second one finds the beginning of its prompt in the cache, which is told beside these.
    tokens = [(usage.prompt_tokens, usage.completion_tokens) for usage in (chunks[-1].usage, whole.usage)]
    check("openai: usage of a stream", tokens[0] == tokens[1], tokens)
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}
    answer = client.chat.completions.create(messages=messages, response_format=schema, **options)
    value = json.loads(answer.choices[0].message.content)
    check("openai: response_format json_schema", set(value) == {"Name", "is_big"}, value)
    tool = {"type": "function", "function": {"name": "note", "parameters": PERSON}}
    options["max_tokens"] = 120
    answer = client.chat.completions.create(
        messages=messages, tools=[tool], tool_choice="required", parallel_tool_calls=False, **options
    )
    call = answer.choices[0].message.tool_calls[0]
    check("openai: a tool is called", call.function.name == "note", call)
    check("openai: its arguments follow its schema", set(json.loads(call.function.arguments)) == {"Name", "is_big"})
    completion = client.completions.create(prompt="The tensor", logprobs=1, echo=True, **{**options, "max_tokens": 0})
    ratings = completion.choices[0].logprobs.token_logprobs
    check("openai: echo with logprobs and no tokens", ratings[0] is None and len(ratings) > 1, ratings)
    response = client.responses.create(model="tiny", input="Hello", max_output_tokens=20)
    check("openai: responses.create", isinstance(response.output_text, str) and response.usage.output_tokens > 0)
    kinds = [e.type for e in client.responses.create(model="tiny", input="Hello", max_output_tokens=20, stream=True)]
    check("openai: responses.create, streamed", kinds[0] == "response.created" and len(kinds) > 6, kinds)
    responses_with_tools(client)
    vector = client.embeddings.create(model="tiny", input="The tensor", dimensions=8).data[0].embedding
    check("openai: embeddings with dimensions", len(vector) == 8)
    try:
        client.completions.create(model="other", prompt="x")
        check("openai: an unknown model is an error", False)
    except openai.NotFoundError as error:
        check("openai: an unknown model is an error", error.code == "model_not_found", error)


def responses_with_tools(client):
    """A function that is called through the Responses API, whole, streamed, and with its result sent back."""
    tool = {"type": "function", "name": "note", "description": "Keeps a name.", "parameters": PERSON, "strict": True}
    options = {"model": "tiny", "tools": [tool], "max_output_tokens": 120, "extra_body": {"seed": 1}}
    question = [{"role": "user", "content": "Hello"}]
    response = client.responses.create(
        input=question, tool_choice="required", parallel_tool_calls=False, **options
    )
    call = response.output[0]
    check("openai: a response calls a tool", call.type == "function_call" and call.name == "note", response)
    check("openai: its arguments follow its schema", set(json.loads(call.arguments)) == {"Name", "is_big"}, call)
    with client.responses.stream(
        input=question, tool_choice={"type": "function", "name": "note"}, **options
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    check("openai: a streamed response calls a tool", deltas == final.output[0].arguments == call.arguments, kinds)
    check("openai: a streamed response ends", kinds[-1] == "response.completed", kinds)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "kept"}
    response = client.responses.create(
        input=[*question, *response.output, result], tool_choice="none", **options
    )
    check("openai: the result of a call is answered", isinstance(response.output_text, str), response)


def node_client(url, folder):
    script = pathlib.Path(__file__).with_suffix(".mjs")
    ended = subprocess.run(["node", str(script), url, KEY], cwd=folder)
    check("node: all of it", ended.returncode == 0, f"exit code {ended.returncode}")


def langchain(url):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key=KEY, max_tokens=120, seed=3)
    check("langchain: invoke", isinstance(chat.invoke("Hello").content, str))
    streamed = "".join(str(chunk.content) for chunk in chat.stream("Hello"))
    check("langchain: stream", len(streamed) > 0)
    schema = dict(PERSON, title="Person", description="Somebody.")
    for method in ("json_schema", "function_calling"):
        value = chat.with_structured_output(schema, method=method).invoke("Who?")
        check(f"langchain: with_structured_output by {method}", set(value) == {"Name", "is_big"}, value)
    newer = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key=KEY, max_tokens=120, use_responses_api=True)
    tool = {"type": "function", "function": {"name": "note", "parameters": PERSON}}
    calls = newer.bind_tools([tool], tool_choice="required").invoke("Who?").tool_calls
    check("langchain: tools through responses", calls[0]["name"] == "note", calls)
    embeddings = OpenAIEmbeddings(
        model="tiny", base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=False
    )
    check("langchain: embed_documents", len(embeddings.embed_documents(["a", "b"])) == 2)


def write_task(parent):
    """A task of multiple choice and one of perplexity, over texts of this project."""
    folder = pathlib.Path(parent) / "tasks"
    folder.mkdir()
    words = "the tensor is on a device and its memory holds what a model has learned".split()
    rows = []
    for number in range(24):
        begin = " ".join(words[(number + i) % len(words)] for i in range(6))
        choices = [words[(number + 6 + i * 3) % len(words)] for i in range(4)]
        rows.append({"question": begin, "choices": choices, "label": number % 4, "text": begin + " " + choices[0]})
    data = folder / "rows.json"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "metadata": {"version": 1},
    }
    choice = dict(
        common,
        task="words",
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="label",
        metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}],
    )
    rolling = dict(
        common,
        task="texts",
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    )
    for task in (choice, rolling):
        # JSON is YAML.
        (folder / f"{task['task']}.yaml").write_text(json.dumps(task))
    return folder


def harness(url, folder, parent):
    import lm_eval
    from lm_eval.tasks import TaskManager

    os.environ["OPENAI_API_KEY"] = KEY
    manager = TaskManager(include_path=str(write_task(parent)), include_defaults=False)
    options = {"tasks": ["words", "texts"], "task_manager": manager, "bootstrap_iters": 0, "log_samples": True}
    served = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "tiny",
            "base_url": f"{url}/v1/completions",
            "tokenizer": str(folder),
            "tokenizer_backend": "huggingface",
            "max_length": 1024,
            "num_concurrent": 4,
        },
        **options,
    )
    local = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": "float32", "device": "cpu", "max_length": 1024},
        batch_size=1,
        **options,
    )
    largest = 0.0
    for task in ("words", "texts"):
        for one, other in zip(served["samples"][task], local["samples"][task]):
            for a, b in zip(one["resps"], other["resps"]):
                a, b = (x[0] if isinstance(x[0], (int, float)) else x[0][0] for x in (a, b))
                largest = max(largest, abs(float(a) - float(b)))
        for name, value in local["results"][task].items():
            if isinstance(value, float) and "stderr" not in name:
                other = served["results"][task][name]
                print(f"        {task} {name}: served {other:.6f}, hf {value:.6f}")
                check(f"lm-eval: {task} {name}", abs(value - other) <= 1e-3 * max(1.0, abs(value)))
    check(f"lm-eval: log-likelihoods differ by {largest:.1e} at most", largest < 1e-2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default=str(ROOT / "target/release/surefoot"))
    parser.add_argument("--node", metavar="DIR", help="a folder whose node_modules has `openai`")
    arguments = parser.parse_args()
    program = str(pathlib.Path(arguments.program).resolve())
    with tempfile.TemporaryDirectory() as parent:
        folder = model_folder(parent)
        with Served(program, folder) as url:
            openai_client(url)
            if arguments.node:
                node_client(url, arguments.node)
            langchain(url)
            harness(url, folder, parent)
    print("all clients get what they ask for")


if __name__ == "__main__":
    main()
