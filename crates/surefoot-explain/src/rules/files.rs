//! Data and models on their way in.

use super::FaultKind::{DataLoading, ModelLoading};
use super::Weight::{Hints, Names, Overrides, Usual};
use super::{TextRule, rule};

pub(super) const RULES: &[TextRule] = &[
    rule(DataLoading, Overrides, &[
        r"\bdataloader worker\b.{0,60}\b(killed|exited|died|terminated|crashed|failed|signal|timed out)|\bDataLoader timed out\b|\bworker(s)?\b.{0,30}\(pid(\(s\))? [\d, ]+\) (is|are|was|were|exited|died|killed)",
        r"\bunable to (open|mmap|write|map|create|resize|allocate)\b.{0,60}(\bshared memory|\bshm\b|/torch_\w+)|\bcould not unlink the shared memory\b|\bshared memory (object|file|segment|manager|region)\b.{0,60}\b(fail|error|unable|too many|exist|not|no such|mode|denied|in read)|\btorch_shm_manager\b",
        r"\binsufficient shared memory\b|\bshared memory \(shm\)|\bincrease (the )?(shared memory|shm)\b|\b/dev/shm\b.{0,60}\b(full|no space|too small|insufficient|limit|exceed|not enough)|\bno space left on device\b.{0,80}(/dev/shm|shm|/torch_)|(/dev/shm|\bshm\b|/torch_\d+).{0,80}\bno space left on device\b|\bshm-size\b|\bipc=host\b|\bshm_open\b|\bbus error encountered in worker\b",
        r"\bin pin memory thread\b|\bwebdataset\b.{0,80}\b(corrupt\w*|fail\w*|error|truncated)\b",
        r"\bpin[_ ]memory thread\b.{0,30}\b(exited|died|fail|crash|unexpected)|\breceived 0 items of ancdata\b|\bPin memory thread exited\b",
    ])
    .cause("A data loader's worker or its shared memory failed, not the device."),
    rule(DataLoading, Overrides, &[
        r"\bcaught \w+ in dataloader worker process\b",
    ])
    .without(&[r"\bout of memory\b|\bOutOfMemory\b|\billegal memory access\b|\bdevice-side assert triggered\b"])
    .cause("A data loader's worker raised an error while it prepared a batch."),
    rule(DataLoading, Overrides, &[r"\bstack expects each tensor to be equal size\b|\bresize storage that is not resizable\b|\bequal size\b.{0,40}\bbatch\b"])
        .with(&[r"_utils[/\\]collate\.py|\bdefault_collate\b|\bcollate_fn\b|dataloader worker"])
        .cause("The samples of one batch have different shapes."),
    rule(DataLoading, Overrides, &[
        r"\b(can't|cannot) pickle\b.{0,120}(dataset|dataloader|collate|sampler|worker_init|transforms?\b)",
    ])
    .cause("What a loader's workers need could not be sent to them: they are started afresh here, and functions inside functions can't travel."),
    rule(DataLoading, Overrides, &[r"\b(can't|cannot) pickle\b|\bEOFError: Ran out of input\b"])
        .with(&[r"_MultiProcessingDataLoaderIter|utils[/\\]data[/\\]dataloader\.py|\bnum_workers\b"])
        .cause("What a loader's workers need could not be sent to them."),
    rule(DataLoading, Usual, &[r"\b_pin_memory_loop\b|\butils[/\\]data[/\\]_utils[/\\](pin_memory|worker|fetch|collate)\.py\b"])
        .in_frames()
        .without(&[r"\bCUDA (error|out of memory)\b|\bOutOfMemory\b|\bModuleNotFoundError\b|\bImportError\b|\bKeyboardInterrupt\b"])
        .cause("The error came up inside the data loader."),
    rule(DataLoading, Names, &[
        r"\bToo many open files\b.{0,60}\b(worker|loader|shared memory|sharing|torch)|\b(worker|loader|shared memory|sharing|torch)\b.{0,60}\bToo many open files\b",
        r"\b(data ?loader|dataset|collate|batch sampler|data pipeline|data worker|prefetch\w*)\b.{0,60}\b(failed|error|crashed|died|timed out|corrupt\w*|exception|broken|raised|killed|stuck|hang|hung)\b",
        r"\b(each element in list of batch should be of equal size|default_collate: batch must contain|batch must contain tensors)\b",
        r"\bcan't open/read file\b|\bcannot identify image file\b|\bimage file is truncated\b|\bbroken (png|jpeg|data stream)\b|\bUnidentifiedImageError\b|\bDecompressionBomb\w*|\b(failed|unable|error|could not) (to )?(read|decode|load|open|loading|decoding|reading)\b.{0,40}\b(images?|jpeg|png|video|audio|samples?|tfrecord|batch(es)?|dataset|shards?|training data|webdataset|example)\b",
        r"\bcorrupt(ed)? (jpeg|image|record|tfrecord|data|sample|shard|batch)\b|\bDATA_LOSS\b|\btruncated record\b|\bbatch (is|was) empty\b|\bnum_samples should be a positive integer\b|\bnum_samples=0\b|\bDataset is empty\b|\bempty dataset\b",
        r"\b(segmentation fault|bus error|floating[- ]point exception|illegal instruction|abort\w*) encountered in worker\b|\bworker\b.{0,30}\b(process|thread)\b.{0,30}\b(died|killed|crashed|exited|terminated) (unexpectedly|with|by)\b|\bimage file is truncated\b",
        r"\bworkers?\b.{0,24}\b(are|is|were|was) (no longer|not) (alive|running|responding)\b",
        r"\bloader\b.{0,40}\b(worker|process|thread)\b.{0,40}\b(died|killed|exited|crash|fail)",
        r"\bBrokenPipeError\b.{0,60}\b(worker|loader)|\bConnectionResetError\b.{0,60}\bworker\b|\b(multiprocessing|worker)\b.{0,40}\bqueue\b.{0,40}\b(empty|closed|broken)\b",
    ])
    .unless(&[r"\bsafetensors\b|\bcheckpoint\b|\bmodel file\b|\bgguf\b|\bonnx\b|\bweights\b"]),
    rule(DataLoading, Names, &[r"\bre-initialize CUDA in forked subprocess\b"])
        .with(&[r"dataloader worker"]),
    rule(DataLoading, Hints, &[r"\bnum_workers\b.{0,60}\b(fail|error|0|reduce|too|set)|\bfile_system\b.{0,30}\bsharing strategy\b|\btoo many open files\b.{0,10}\(24\)|\bset_sharing_strategy\b"]),
    rule(DataLoading, Overrides, &[r"\b(lmdb|tfrecord|webdataset|pyarrow(\.lib)?|tensorflow_datasets|datasets\.\w+)\.\w*(Error|Exception|Invalid)\b|\b(DatasetGeneration|DatasetNotFound|NonMatchingSplitsSizes|ExpectedMoreSplits)\w*Error\b|\bArrowInvalid\b|\bArrowTypeError\b|\bArrowNotImplementedError\b|\bArrowIOError\b|\bArrowCapacityError\b"])
        .cause("The data set could not be read."),
    // Models.
    rule(ModelLoading, Overrides, &[
        r"\b(load|set|assign|copy|restore)\w*\b.{0,40}\b(shape|size)\b.{0,60}\b(whose|which|variable|parameter)\b.{0,40}\b(has|have|is|whose) (a )?(shape|size)\b|\bwhose shape is \(|\(op: 'Assign'\)|\b(saved|checkpoint|pretrained|loaded) weights? (with|has|have|of) shape\b",
        r"\bunable to open file '?[^' ]{1,120}\.bin'? in model\b",
        r"\bKeyError: '(state_dict|model_state_dict|model_state|model)'|\bunknown quanti[sz]ation type\b|\bwhile loading (the |a )?(checkpoint|weights|state)\b.{0,40}\b(shape|size|differ|mismatch)|\bcannot find [\w.]+ in (the )?(gguf )?metadata\b|\.mpk\b.{0,40}\b(not found|no such)|\b(FileNotFound|no such file)\b.{0,60}\.mpk\b",
        r"\bonnx\S*checker\.ValidationError\b|\brestore data location of\b",
        r"\bmodel type:? [`'\x22]?[\w.-]+[`'\x22]? (is )?not (yet |currently )?supported\b",
        r"\bsaved (weights?|model|parameters?)\b.{0,40}\b(shape|size|dtype)\b",
        r"\bin loading state_dict\b|\b(Unexpected|Missing) key\(s\)|\bsize mismatch for [\w.]+: copying a param\b|\bcopying a param with shape\b|\bkey\(s\) in (source |checkpoint )?state_dict\b|\bmissing_keys=|\bunexpected_keys=",
        r"\bload\w*\b.{0,40}\b(checkpoint|state_dict|weights)\b.{0,60}\b(size mismatch|shape mismatch|mismatch|different shape)",
        r"\b(checkpoint|state_dict)\b.{0,80}\b(shape|size)s?\b.{0,60}\b(current|in the) model\b",
        r"\bdeserialize object on (a )?CUDA\b|\btorch\.load with map_location\b",
        r"\btensor '?[\w.]+'? has wrong shape\b|\bwrong (shape|number) (of|for) tensors?\b.{0,40}\b(expected|got|file)\b|\bYou are trying to load a weight file containing\b|\bignore_mismatched_sizes\b",
    ])
    .unless(&[r"\bout of memory\b"]),
    rule(ModelLoading, Overrides, &[
        r"\bcannot reshape array of size\b|\b(shape|size)s? (mismatch\w*|(do|does) not match|(are|is) incompatible)\b|\bmust match the (existing )?size of tensor\b|\bexpected shape\b",
    ])
    .with(&[r"\bFile .{1,300}, in (load_(darknet_)?weights|load_state_dict|load_checkpoint|load_pretrained\w*|_load_state_dict_into\w*|restore\w*|load_param\w*)\b"])
    .cause("The file's weights don't fit the model that they were loaded into."),
    rule(ModelLoading, Names, &[
        r"\bSafe[tT]ensor\w*Error\b|\bdeserializing (the )?header\b|\bMetadataIncompleteBuffer\b|\bHeaderToo(Large|Small)\b|\bInvalidHeader\w*|\bheader too (large|small)\b|\bincomplete metadata, file not fully covered\b|\binvalid header length\b|\binvalid (UTF-8|JSON) in header\b|\bTensorNotFound\b|\btensor `[^`]+` not found\b|\binvalid (shape, data type, or )?offset for tensor\b|\bcan't be created from \d+ bytes\b",
        r"\bPytorchStreamReader\b|\bfailed finding central directory\b|\bfailed reading zip archive\b|\binvalid load key\b|\bUnpicklingError\b|\bpickle data was truncated\b|\bWeights only load failed\b|\binvalid magic number\b|\bcorrupt file\b|\bnot a ZIP archive\b|\bunexpected EOF, expected \d+ more bytes\b|\bfile might be corrupted\b|\bpersistent_load\b|\bversion_ <= kMaxSupportedFileFormatVersion\b",
        r"\b(bad|invalid|unknown|wrong) (gguf |ggml |file |model )?magic\b|\bmagic (number )?(characters )?.{0,30}\bexpected\b|\bGGUF\b.{0,60}\b(invalid|corrupt|fail|error|unsupported|not found|version|magic)|\bgguf_init\w*\b.{0,60}\b(fail|error|invalid)|\berror loading model\b|\bfailed to load (the )?(model|weights|checkpoint|safetensors|gguf|tokenizer|onnx|network|state)\b|\bunknown model architecture\b|\bllama_(model_)?load\w*\b.{0,60}\b(fail|error|unknown|missing)|\bmissing tensor '|\bdone_getting_tensors\b",
        r"\bparameters? not in model\b|\bMissing (\d+ )?(parameters|weights|tensors)\b|\b(missing|unexpected|extra|unknown|unused)\b.{0,24}\b(parameters?|tensors?|weights?|keys?)\b.{0,60}\.(weight|bias|scales|biases|running_\w+)\b|\bReceived \d+ parameters\b|\bcannot find tensor\b|\bcan ?not find (the )?(tensor|weights?|parameter)\b|\bno tensor named\b|\b(tensor|weight|parameter)s? '?[\w.]*'? ?(is |was |were )?(not found|missing) (in|from) (the )?(model|checkpoint|file|safetensors|archive|weights|state)\b|\bweights? (were |was |are )?not (found|used|initialized)\b|\bSome weights of\b",
        r"\bINVALID_PROTOBUF\b|\bInvalidProtobuf\b|\bprotobuf parsing failed\b|\bLoad model from .{1,200} failed\b|\bNO_SUCHFILE\b|\bNO_MODEL\b|\bUnsupported model IR version\b|\bInvalid model\b|\bINVALID_GRAPH\b|\bthis is an invalid model\b|\bmodel (file|path)\b.{0,80}\b(not found|does not exist|doesn't exist|missing|invalid|corrupt\w*|not exist|cannot be opened|truncated|incomplete)\b|\bFailed to load model\b|\bModelProto does not have a graph\b",
        r"\b(unable|failed|could not|cannot|error|couldn't|can't) (to )?(load|loading|open|read|reading|parse|restore|restoring|find|locate|deserialize|deserializing|import)\b.{0,60}\b(weights?|checkpoints?|state ?dict\w*|pretrained|\.safetensors|\.ckpt|\.pth|\.gguf|\.onnx|\.pt\b|pytorch_model\S*|model file|model from|the model|a model|config\.json|safetensors|lora|adapter weights|vae|unet|tokenizer)",
        r"\bdoes not appear to have a file named\b|\bno file named\b|\bno such file or directory\b.{0,200}\.(pth?|ckpt|safetensors|gguf|onnx|bin|h5|pb|msgpack|npz|tflite|mlmodel\w*|weights)\b|\.(pth?|ckpt|safetensors|gguf|onnx|bin|h5|pb|weights|engine)['\x22`)]?:? .{0,40}\b(no such file|not found|does not exist|doesn't exist|cannot be found|is corrupt|truncated|missing)\b|\bSavedModel file does not exist\b|\bcheckpoint\b.{0,60}\b(not found|corrupt\w*|missing|damaged|truncated|incompatible|invalid|does not exist|incomplete|could not be)\b",
        r"\bBadZipFile\b|\bFile is not a zip file\b|\bfile signature not found\b|\ballow_pickle=False\b|\bUnrecogni[sz]ed model\b|\bmodel_type` key in its config\b|\b(load|read|restore|open)\w* (the )?(model )?(record|recorder|weights|checkpoint)\b.{0,40}\b(FileNotFound|not found|fail|error|missing|corrupt)|\bgguf version\b|\bmodel (weights|record|checkpoint|archive)\b.{0,40}\b(corrupt|missing|damaged|truncated|incomplete|could not|not found)",
        r"\bInvalidTensorView\b|\bTensorInvalidInfo\b|\bnpy/npz error\b|\bshard\b.{0,40}\b(missing|not found|corrupt)|\bSHA-?256\b.{0,60}\b(mismatch|not match|does not|doesn't)|\bhash mismatch\b|\bchecksum\b.{0,40}\b(mismatch|fail|not match|wrong)",
        r"\bis not a (valid )?(checkpoint|(model|weights?|safetensors|gguf|onnx|torchscript) (file|archive|folder|directory))\b",
        r"\bmodel could not be parsed (while|from (file|protobuf))\b|\bneither a function input nor\b|\bMLModel\w*\b.{0,40}\bload\w* failed\b|\bcom\.apple\.CoreML\b.{0,80}\b(unable|failed|could not|error) (to )?(extract|read|reading|load|loading|open|parse)\b",
        r"\b(config|tokenizer|model|weights?|processor|index|vocab\w*)( file)? (was |is )?(not found|missing)\b.{0,200}(huggingface|models--|snapshots)",
        r"\bunrecogni[sz]ed (model|configuration class|checkpoint)\b|\bmodel type `?\w+`? .{0,60}\bnot recogni[sz]e|\bTransformers does not recogni[sz]e this architecture\b|\bModel architectures? \[.{1,80}\] (are|is) not supported\b|\bunsupported (model architecture|model format|checkpoint format|quantization (type|method|format))\b",
    ])
    .unless(&[
        r"\bout of memory\b|\bunable to allocate\b|\bfailed to allocate\b|\bHTTP\b|\bconnection\b|\bMax retries\b|\bcouldn't connect\b|\blibcu\w+|\bnot enough memory\b",
        r"\bcuda_?error|\bCUDA error|\bpip\b",
    ]),
    rule(ModelLoading, Usual, &[
        r"\bKeyError: '?\x22?[\w]+\.[\w.]*(weight|bias|running_mean|lora_\w+|scales|qweight|gamma|beta|embeddings?)'?|\bKeyError: '(state_dict|model_state_dict|model_state|module\.\w+[\w.]*|epoch)'",
        r"\bEOFError: Ran out of input\b|\b(state_dict|checkpoint)\b.{0,60}\b(keys?|mismatch|not match|incompatible|does not)\b|\bincompatible (checkpoint|weights|state)\b",
    ]),
    rule(ModelLoading, Hints, &[r"\b(checkpoint|weights?|safetensors|gguf)\b.{0,60}\b(invalid|broken|wrong|bad|old|newer)\b"])
        .unless(&[r"\btensor\b.{0,20}\bdevice\b"]),
    rule(ModelLoading, Usual, &[r"\bpanicked at\b.{0,200}\b(burn[-_]import|onnx[-_]ir|burn[-_]store|from_onnx)\b"])
        .unless(&[r"\bAlreadyExists\b|\bNotPresent\b"])
        .without(&[r"\bAlreadyExists\b|\bNotPresent\b|\bnot (yet )?(supported|implemented)\b"])
        .cause("A model could not be imported."),
    rule(ModelLoading, Overrides, &[
        r"\bfor parameter [\w.]+(weight|bias|scales|biases)\b|\bmismatchedSize\b|\bexpectedShape: \[",
    ]),
    rule(ModelLoading, Usual, &[
        r"\bmissing field `\w+`( at line \d+)?|\bunknown variant `\w+`, expected\b|\bconfig\.json\b.{0,60}\b(missing|invalid|not found|error|parse)",
    ]),
];
