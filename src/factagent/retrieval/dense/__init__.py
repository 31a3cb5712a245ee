"""Dense retrieval: `encode` texts, `embed` a corpus, search its vectors (`exact`), all together as an `index`."""
