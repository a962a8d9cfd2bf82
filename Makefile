# Habits. `make` alone lists them.
.PHONY: help install test lint imports types refresh demo bench captures clean
help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
install: ## editable install with everything the tests need
	pip install -e '.[test,lint,dask]'
test: ## the README's test command
	python -m pytest -n auto
lint: imports ## ruff, both rules and format, and the law of imports
	ruff check . && ruff format --check .
imports: ## the law of imports (pyproject.toml): who may import whom
	lint-imports
types: ## strict type check
	.ci/types
refresh: ## remake what is generated in the documents
	python docs/refresh.py
demo: ## simulate a serving run, analyse it, write its report
	trace-analyze demo -o build/demo
bench: ## time the road from file to report (docs/performance.md)
	python benchmarks/run.py
captures: ## rebuild the shipped captures from their generator
	python -m trace_analyze.fixtures.build
clean: ## remove what builds and tests leave (build/editable is the editable install)
	find build -mindepth 1 -maxdepth 1 ! -name editable -exec rm -rf {} + 2>/dev/null || true
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
