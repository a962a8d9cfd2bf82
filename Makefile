# Habits. `make` alone lists them.
.PHONY: help install test lint types demo bench captures clean
help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
install: ## editable install with everything the tests need
	pip install -e '.[test,lint,dask]'
test: ## the README's test command
	python -m pytest -n auto
lint: ## ruff, both rules and format
	ruff check . && ruff format --check .
types: ## strict type check
	.ci/types
demo: ## simulate a serving run, analyse it, write its report
	trace-analyze demo -o build/demo
bench: ## time the road from file to report (docs/performance.md)
	python benchmarks/run.py
captures: ## rebuild the shipped captures from their generator
	python -m trace_analyze.fixtures.build
clean: ## remove what builds and tests leave
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
