"""`trnx.jobs`: what a Trainium job runs: train, serve, kernel_bench. The same files on a laptop."""
