"""Report: a run as one HTML page that a person opens and others can be sent. Facts are gathered from the run folder alone
(`facts`), drawn (`charts`) and put into a template (`page`); what a folder would not say by itself is kept there when the
run begins (`planned`)."""
