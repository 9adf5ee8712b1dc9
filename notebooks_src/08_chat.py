# ---
# trainbook:
#   title: "Trainbook 08: a chat model on your conversations"
#   tasks: [chat]
#   configs: [chat, chat_small, chat_base_small]
#   gpu: true
#   internet: false
# ---

# %% [markdown]
# # A chat model on your conversations
#
# Press **Run all** and this notebook will:
#
# 1. read one file of conversations, find by the model's template which tokens are trained, and name rows that would teach
#    nothing, before training;
# 2. plan what fits the card: a base in 4 bits, adapters on all linear layers, a loss that never holds all logits;
# 3. train on both GPUs where there are two, and resume an earlier session's run to the same bytes;
# 4. answer held-out questions, every turn of them, beside the untouched base, the base with four examples in its prompt, and retrieval;
# 5. leave the adapter, merged weights that were compared with it, tables, and one archive, `outputs.tar.gz`.
#
# It stops by itself before the session ends. Run it again, with this run's output as an input, and it continues where it
# stopped. On Kaggle choose **Settings > Accelerator > GPU T4 x2** first, and add a base: **Add Input > Models > Qwen 2.5**, framework
# Transformers, variation 1.5b-instruct. Without one, a small base is made in a minute, whose answers are poor. Without your data,
# it learns to turn sentences into calls of a small API.

# %% shared: library

# %% shared: dependencies

# %%
from trainbook import dependencies

print(dependencies.ensure(dependencies.with_own(["transformers", "peft", "accelerate", "sklearn"])))

# %% [markdown]
# ## Parameters
# Empty or zero means the configuration file's value. `OVERRIDES` takes any key of that file, for example
# `{"workload.length": 1024}`. Conversations are JSON lines, a JSON list or a table: `{"messages": [{"role": "user", "content": "..."},
# ...]}`, perhaps with `tool_calls` and `tools`, ShareGPT's `conversations`, or `{"prompt": "...", "answer": "..."}`.

# %% tags=["parameters"]
CONFIG: str = ""  # empty: the size for Kaggle where there is a GPU, otherwise the small one
BASE: str = ""  # empty: the configuration's; a mounted chat model, OWNER/MODEL/FRAMEWORK/VARIATION, or a folder
DATA_DIR: str = ""  # empty: mounted conversations if some are found, otherwise the generated task
OUTPUT_DIR: str = ""  # empty: the platform's
SMOKE_STEPS: int = 0
SMOKE_ONLY: bool = False  # True: stop after the smoke test, before anything is trained
MAX_STEPS: int = 0
SESSION_MINUTES: float = 0  # 0: the platform's limit
OVERRIDES: dict = {}
RESUME_FROM: str = ""  # empty: the newest checkpoint in the output folder or among the inputs

# %%
from lib.machine import memory
from trainbook import doctor, launch, notebook
from trainbook.launch import ensemble, resume, smoke
from trainbook.notebook import widgets
from trainbook.outputs import packing
from workloads.chat.base import stand_in

OVERRIDES = notebook.as_overrides(OVERRIDES) | ({"workload.base": BASE} if BASE else {})
config = notebook.configure("chat", HOME, globals())
if not BASE:
    config = stand_in.with_base(config)

# %% shared: gpu-run

# %% [markdown]
# ## Data
# Where the conversations come from, what was found in them, and ten as the model reads them: what is trained stands between ⟦
# and ⟧, and the last of these holds the token that ends the answer. Rows that would spoil the run end it here, with their numbers.

# %% shared: prepare

# %% shared: memory-run

# %% shared: smoke-run

# %% shared: resume-run

# %% shared: full-run

# %% shared: metrics-run

# %% [markdown]
# ## Is it better than the base, and than copying?
# The best weights answer questions that they never saw. `untouched base` is the model that you started from, also with examples in
# its prompt; `nearest, values replaced` copies the answer of the nearest training question and puts in the words that differ. Where
# the network does not beat these, tuning was not worth it. In brackets: 95 % intervals, gains paired by question.
# `other_perplexity` of another text, beside that of the base, shows what was forgotten.

# %% shared: compare

# %% [markdown]
# ## Ask it
# Write your questions, one a string. From the command line it is `trainbook predict outputs.tar.gz questions.jsonl OUT`.

# %%
QUESTIONS = ["wake me at 7 am with the label coffee", "how many feet are 250 metres"]

# %%
import csv

from lib.text import aligned

if summary.reason == "completed":
    questions = run.folder / "questions.txt"
    questions.write_text("\n".join(QUESTIONS), "utf-8")
    print(ensemble.run(run.folder, questions, run.folder / "predictions"))
    with (run.folder / "predictions" / "predictions.csv").open(encoding="utf-8") as file:
        notebook.show(aligned([*csv.reader(file)], left={1}))

# %% shared: packaging

# %% [markdown]
# ## Troubleshooting
#
# | what you see | what to do |
# |---|---|
# | "No GPU" | Settings > Accelerator > GPU T4 x2, then run again. The quota is 30 GPU hours a week. |
# | "There is no input ..." with the name of the base | `BASE` names no input: add that model (Add Input > Models), or empty `BASE`. The repository's folder `configs/chat-base`, added as a data set of that name, is a better small base than the one made in a minute. |
# | "rows cannot be used" | Each line has file, line and reason. Correct these rows, or leave them out. |
# | "does not show tool calls" | The base's template has none. Take a base that knows tools, such as Qwen 2.5. |
# | "The conversations would not teach what they should" | Each line has the mistake and the numbers of rows. Correct them, or leave these rows out. |
# | "More than half of the conversations exceed ..." | Raise `workload.length`: `OVERRIDES = {"workload.length": 4096}`, and look at the plan again. |
# | "Memory ran out at step ..." | Do nothing: the step was repeated in smaller micro-batches. |
# | the network is below "base, 4 examples" | More rows or epochs; or keep the base, and give it examples in its prompt. |
# | `other_perplexity` is twice the base's | A lower `optimizer.lr`, fewer epochs, or `workload.other.replay` with a text of `workload.other.text`. |
# | "The merged model is not the trained one" | Use the adapter with its base: both are in the archive, below `export`. |
# | stopped with reason `deadline` | Everything is saved. Add this notebook's output as an input (Add Input > Your Work) and run all again. |
# | "cannot be resumed with this configuration", or "was completed with another" | Something was edited since. Restore the earlier value, or write the line that the message gives: it trains the edit as a run of its own. |
