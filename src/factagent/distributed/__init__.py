"""verl as an engine: the same method, Episode and credit on one GPU to many nodes. Conversions only.

    overrides   one configuration -> verl's keys; what verl cannot honour is an error
    servers     search servers of a run: started or given, checked before anything else
    policy      verl's sampling servers as an `AsyncPolicy`
    play        a group of episodes, played and credited
    worker      the Ray actor that does so, and its manager
    rows        samples -> what TransferQueue stores, and the order in which ranks read it
    loss        the objective of `train.loss` as verl's loss function
    trainer     verl's synchronous trainer over all this
    launch      what `factagent train --engine verl` calls
    memory      what a run needs of each GPU
    export      verl's shards -> Hugging Face safetensors
    sft         a cold start through verl's own SFT trainer
    cpu         the same loop without a GPU

Only modules that say so in their docstring import verl (pinned: `verl==0.9.1`), so a configuration can be checked
where it is not installed.
"""
