//! Ordinary errors that mention memory, devices or CUDA in passing. They have rules of their own
//! so that a device's words inside them don't count.

use super::FaultKind::NotDeviceRelated;
use super::Weight::{Names, Overrides, Usual};
use super::{TextRule, rule};

pub(super) const RULES: &[TextRule] = &[
    rule(NotDeviceRelated, Overrides, &[
        r"\bno space left on device\b|\bErrno 28\b|\bos error 28\b|\bENOSPC\b|\bdisk (is |was )?(full|quota)\b|\bdisk quota exceeded\b|\bErrno 122\b|\bout of disk( space)?\b|\bnot enough (free )?(disk )?space( (left|available))?( on| in)? ?(the )?(disk|drive|volume|partition)\b|\bnot enough (free )?disk\b|\binsufficient (disk|storage) space\b|\bdatabase or disk is full\b|\bfile ?system (is )?full\b|\bno (free )?space (left )?(on|in) (the )?(disk|drive|volume|partition)\b|\bWinError 112\b|\bNot enough free disk space\b",
    ])
    .without(&[r"/dev/shm|\bshm\b|/torch_\d+|dataloader worker|shared memory"])
    .cause("A disk is full or over its quota; the device in the message is the disk.")
    .advice(&["Free space on the disk, or point caches and outputs at another one."]),
    rule(NotDeviceRelated, Overrides, &[
        r"\bhas no attribute '|\bobject has no attribute\b|\bmodule '[\w.]+' has no attribute\b|\bcannot import name\b|\bNo module named\b|\bModuleNotFoundError\b",
        r"\bunexpected keyword argument\b|\bKeyword argument not understood\b|\bmissing \d+ required (positional|keyword)|\btakes \d+ positional argument|\bgot multiple values for\b|\bNameError: name\b|\bUnboundLocalError\b|\bSyntaxError\b|\bIndentationError\b|\bunsupported operand type\(s\)|\bis not (callable|subscriptable|iterable)\b|\bunhashable type\b|\bRecursionError\b",
        r"\berror: (unrecognized arguments|argument |the following arguments are required|invalid choice)|\bunrecognized arguments\b|\binvalid choice: |\bunknown (option|flag|argument)\b",
        r"\bdevice_map\b",
        r"'provider(s|_options)'.{0,40}\b(must|should)\b",
        r"\bUndefVarError\b|\berror while handling argument\b|\b(unk?nown|invalid) value for --?\w",
        r"\bconcrete values?\b.{0,80}\bTraced<|\bstatic_arg(num|name)s\b|\b(Tracer(Array|Bool|Integer)Conversion|Concretization|UnexpectedTracer|NonConcreteBooleanIndex)\w*Error\b|\bAbstract tracer value encountered\b",
        r"\brefers? to a single memory location\b|\bmodified by an inplace operation\b|\bbackward through the graph a second time\b|\bdoes not require grad and does not have a grad_fn\b|\bleaf variable\b.{0,40}\bin-?place\b|\bexpected to have finished reduction\b",
    ])
    .unless(&[r"\blib\w+\.so\b.{0,60}\bcannot open\b|\b(nv|hip)rtc\w*|\bnvcc\b|\bptxas\b|\bgpu-architecture\b|\bclang\b"])
    // A compiler that raised it while it compiled for the device.
    .without(&[r"\b(BackendCompilerFailed|InductorError|LoweringException)\b"])
    .cause("A mistake in the program or its versions, not a device fault.")
    .advice(&["Read the line that raised it: a name, an argument or a version doesn't fit."]),
    rule(NotDeviceRelated, Overrides, &[
        r"\bHTTPSConnectionPool\b|\bMaxRetryError\b|\bMax retries exceeded\b|\bConnectTimeout\w*|\bReadTimeout\w*|\bConnection (refused|reset by peer|timed out|aborted|error)\b|\bConnectionError\b|\bConnectionRefusedError\b|\bHTTP ?Error \d{3}|\b(4\d\d|5\d\d) (Client|Server) Error\b|\bHTTP/?\d?\.?\d? (4|5)\d\d\b|\bstatus(_| )code:? ?(4\d\d|5\d\d)\b|\bToo Many Requests\b|\bSSL(Error|: CERTIFICATE)|\bName or service not known\b|\bTemporary failure in name resolution\b|\bgetaddrinfo failed\b|\bcouldn't connect to\b|\bWe couldn't connect\b|\bProxyError\b|\b(401|403|404|429|500|502|503|504)\b[: -]{1,3}(client error:? |server error:? )?(unauthorized|forbidden|(page |file |url )?not found|too many|rate|internal server|bad gateway|service (temporarily )?unavailable|gateway time)|\brate limit\b|\bAddress already in use\b|\bGatedRepoError\b|\bRepositoryNotFoundError\b|\bnetwork is unreachable\b",
    ])
    // A server that passes on what happened to it.
    .unless(&[r"\b500 Internal Server Error: \S"])
    .without(&[r"_pin_memory_loop|rebuild_storage_fd|dataloader worker"])
    .cause("A network request failed.")
    .advice(&["Check the connection, the address and the access rights."]),
    rule(NotDeviceRelated, Overrides, &[
        r"\bpip('s)? (dependency resolver|install|subprocess)\b|\bdependency resolver\b|\bNo matching distribution found\b|\bCould not find a version that satisfies\b|\bResolutionImpossible\b|\bVersionConflict\b|\bPackagesNotFoundError\b|\bUnsatisfiableError\b|\brequires? \S+[<>=!~]=.{0,60}\b(but you have|which is incompatible|incompatible)|\bis not a supported wheel\b|\bmetadata-generation-failed\b|\bFailed building wheel\b|\bexternally-managed-environment\b|\bunmet dependencies\b|\bE: Unable to (locate|fetch)\b|\bcargo\b.{0,40}\bfailed to select a version\b",
        r"\bfatal: (not a git|unable to access|repository|refusing|destination|could not read|ambiguous|pathspec|bad object|remote)\b|\bgit\b.{0,20}\b(merge|rebase|push|pull|clone|lfs)\b.{0,40}\b(conflict|failed|rejected|error)|\bCONFLICT \(",
        r"\bKeyboardInterrupt\b",
        r"\bUnicode(De|En)codeError\b|\bJSONDecodeError\b|\byaml\.\w+\.\w*Error\b|\bTOMLDecodeError\b|\bParserError\b|\bConfig(Attribute|Key|Type)?Error\b|\bpydantic\S*ValidationError\b|\bvalidation errors? for\b|\bOmegaConf\b",
        r"\bUnable to allocate resources: Requested node\b|\bmake: \*\*\* No rule\b|\bCMake Error\b|\berror\[E\d{4}\]|\bfailed to push some refs\b|\bError from server\b|\bTokenizer class\b|\bnot writable\b|\bfile \S+\.(pth?|ckpt|bin|tar|zip) cannot be opened\b",
        r"\bmaxmemory\b|\bOOM command not allowed\b|\bpsycopg\w*\.|\bsqlite3\.|\bOperationalError\b|\bsqlalchemy\b|\bMySQL\b|\bORA-\d{5}\b",
        r"\bIsADirectoryError\b|\bNotADirectoryError\b|\bFileExistsError\b",
    ])
    .cause("An ordinary error of a tool, a file or a setting, not a device fault."),
    rule(NotDeviceRelated, Overrides, &[r"\b(clang|gcc|g\+\+|cc)\S{0,8}: (fatal )?error: (no such file|no input files|linker command failed|unrecognized)\b|\bcollect2: (fatal )?error\b"])
        .without(&[r"\bnvcc\b|\bptxas\b|\btriton\b|\binductor\b|\bamdgcn\b|\.cuh?\b|\bgpu\b|\bError building extension\b|-lcuda\b|\bcupy\b|\bhipcc\b|\bsm_\d|\btorch_extensions\b"])
        .cause("A program could not be built on this machine."),
    rule(NotDeviceRelated, Overrides, &[r"\b(Deprecat|FutureWarn|PendingDeprec)\w*|\bis deprecated\b|\bwill be removed in\b|\bhas been (deprecated|renamed|moved)\b"])
        .unless(&[r"\berror:|\bout of memory\b|\bfailed\b"])
        .cause("A notice about an old name, not an error."),
    rule(NotDeviceRelated, Overrides, &[r"\b\w*Warning: .{0,240}\b((won't|will not) be used|will be ignored|has no effect|is ignored)\b"])
        .cause("A warning about a setting that does nothing here, not an error."),
    rule(NotDeviceRelated, Names, &[
        r"\bFileNotFoundError\b|\bNo such file or directory\b|\bos error 2\b|\bcannot find the (file|path) specified\b",
        r"\bPermissionError\b|\bPermission denied\b|\bErrno 13\b|\bos error 13\b|\bOperation not permitted\b|\bAccess is denied\b",
        r"\bcommand not found\b|\bis not recognized as an internal\b|\bUsage: |\btry '.{0,20}--help'",
        r"\bKeyError: (?:\S{1,24}$|\S+ )|\bIndexError: (list|tuple|string|pop)|\bZeroDivisionError\b|\bStopIteration\b|\bAttributeError\b|\bImportError: (?:[^l]|l[^i]|li[^b])|\bTypeError: '\w+' object\b|\bTypeError: (can only|must be|expected (str|int|list|dict|float|bytes|string|a)|descriptor|\w+\(\) (got|takes|missing|argument)|unsupported operand)|\bValueError: (invalid literal|too many values|not enough values|could not convert|unknown|Unrecognized (arg|key|opt|config)|Invalid (value|argument|option|choice|config\w*)|substring|time data|empty)|\bAssertionError(:? *$)",
        r"\bthe upper bound value\b.{0,60}\bgreater than the lower bound\b|\bcannot set variable\b|\bprocess group has not been initiali[sz]ed\b",
    ])
    .unless(&[r"\blib\w+\.so\b|\.dll\b|/dev/(kfd|nvidia|dri)|\bdlopen\b|\bSymbol not found\b|\bstate_dict\b|\bin (the )?checkpoint\b|\bCan't get attribute\b", r"\.(pth?|ckpt|safetensors|gguf|onnx|bin|h5|pb|msgpack|npz|tflite|weights|engine)\b"])
    .without(&[
        r"_pin_memory_loop|dataloader worker",
        r"\b(BackendCompilerFailed|InductorError|LoweringException)\b|\bcl(Build|Compile|Link)Program\b|\bfailed to build OpenCL\b",
        // A loss scale that was halved until nothing was left of it.
        r"\bloss scale\b(?s:.){1,4000}\bZeroDivisionError\b",
        // What was raised while a device fault was being handled is only its echo.
        r"\bout of memory\b(?s:.){1,4000}\b(during handling of the above exception|direct cause of the following)\b",
    ])
    .cause("An ordinary error of the program, a file or a right, not a device fault."),
    rule(NotDeviceRelated, Usual, &[
        r"\bmemory_format\b|\bshare_memory\b|\bCUDA_VISIBLE_DEVICES\b.{0,30}\b(set|is|=|to)|\bmemory usage\b|\bmemory (summary|snapshot|profil\w+)\b|\b(using|use|running on|selected|available|moved to|loaded (on|to)) (device|gpu|cuda|cpu|mps)\b",
    ])
    .unless(&[r"\berror\b|\bfail|\bcannot\b|\bunable\b|\bexceed|\bout of memory\b|\bkilled\b|\binvalid\b"])
    .cause("A note that mentions memory or devices, not an error."),
];
