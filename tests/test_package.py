def test_it():
    import trace_analyze

    assert trace_analyze.__version__
