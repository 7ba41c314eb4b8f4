//! Shapes that don't fit each other, and numbers that stopped being numbers.

use super::FaultKind::{Numeric, ShapeMismatch};
use super::Weight::{Hints, Names, Usual};
use super::type_names::elements_agree;
use super::{TextRule, rule};

/// A checkpoint of another shape is a loading problem, not a caller's mistake in a run.
const LOADING: &[&str] = &[
    r"\bcopying a param\b|\bcheckpoint\b|\bstate_dict\b|\bin loading\b|\bcheck_tensor_dims\b|\bhas wrong shape\b",
];

pub(super) const RULES: &[TextRule] = &[
    rule(ShapeMismatch, Names, &[
        r"\bshapes? cannot be multiplied\b|\bsize mismatch, (m1|got|\[)|\bmat1 and mat2 shapes\b|\binconsistent tensor sizes?\b",
        r"\bsize of tensor \w+ \(\d+\) must match\b|\bat non-singleton dimension\b",
        r"\bshape '?\[.{0,60}\]'? is invalid for input\b|\bcannot reshape (tensor|array)\b|\bcannot be reshaped\b|\binvalid shape\b.{0,30}\b(reshape|view)\b",
        r"\bexpected input\[.{1,60}\] to have \d+ channels\b|\bGiven groups=",
        r"\bexpected \d+[- ]?d(imensional)?\b.{0,60}\b(input|tensor|but got|or \d)\b|\bexpected \d+d \(unbatched\)|\bexpected \d+-dimensional\b",
        r"\bsizes of tensors must match\b|\btensors must have (the )?same (number of dimensions|shape|size)\b|\btensor sizes must match\b",
        r"\bstack expects each tensor to be equal size\b|\bbatch_size \(\d+\) to match target\b|\binput batch_size\b",
        r"\bexpanded size of the tensor\b|\bdoesn't match the broadcast shape\b|\bmust match the existing size\b",
        r"\bnot broadcast compatible\b|\b(axis|dim\w*|shape|size|channels|heads|length)\b.{0,60}\b(is|are) not (evenly )?divisible by\b|\b(does not|doesn't|do not|don't) broadcast\b|\bggml_can_(mul_mat|repeat)\w*|\bggml_are_same_shape\b|\bGGML_ASSERT\b.{0,60}(\bne\d*(\[\d\])? ?==|->ne\[|\bggml_nelements\b)|\bnot broadcastable\b|\b(cannot|can't|could not|couldn't) (be )?broadcast(ed)?\b|\bfailed to broadcast\b|\bincompatible shapes?\b|\bshapes? .{0,80}\bnot aligned\b|\bincompatible dimensions?\b",
        r"\bshape mismatch\b|\bshapes? mismatch(es|ed)?\b|\bmismatched shapes?\b|\bShapeMismatch\w*|\b(mismatch|mismatched)( in)? (dimensions?|sizes?|ranks?|lengths?)\b|\bdimensions? mismatch\b|\bshapes? (do not|don't|does not|doesn't|did not) match\b|\brank mismatch\b",
        r"\bunexpected rank\b|\bdimension index \S+ out of range\b|\bduplicate dim index\b|\bDimension out of range\b|\bdim out of range\b|\b(DimOutOfRange|UnexpectedNumberOfDims|UnexpectedShape|BroadcastIncompatibleShapes|MatMulUnexpectedStriding|MatMulNonContiguous|NarrowInvalidArgs|Conv\dd?InvalidArgs|DuplicateDimIndex)\b",
        r"\bnarrow invalid args\b|\bconv\dd invalid args\b|\binvalid index \S+ with dim size\b|\bcannot broadcast\b.{0,60}\bto\b|\bequally along dim\b|\bInvalid matmul arguments\b|\bempty tensor for\b|\bexpects at least one tensor\b",
        r"\bnegative dimension -|\bnegative (values?|dimensions?|sizes?|extent)\b.{0,30}\b(shape|dim\w*|size|tensor|axis)\b|\b(element|number of element)s? counts? (differ|do not match|don't match)\b|\bindices must be [1-4]-?D\b",
        r"\b(must|should|has to|have to|needs? to|expected to)( also)? (be|have) (an? )?(at least |at most |exactly )?(\d|one|two|three|four|five)[- ]?(d\b|dims?\b|dimension)|\bmust be an? (matrix|vector)\b|\bmust have (the )?same (sizes?|shapes?|lengths?|ranks?)\b|\b[0-5]D( or [0-5]D)?\b.{0,40}\bexpected\b|\bmust be broadcastable\b|\bshapes? of the \w+ and \w+ (are|is) incompatible\b",
        r"\bzero-dimensional tensor\b|\bmulti-target not supported\b|\bspatial targets supported\b|\bOutput size is too small\b|\btoo many indices for (tensor|array)\b|\bexceeds dimension size\b|\brece?ived \d+ axes\b|\bout of data bounds\b|\bchannels?\b.{0,24}\bnot equal to\b|\bmore dimensions than\b|\bdoes not match the number of dimensions\b|\bpadding size should be less\b|\bmismatch on \w+ dim",
        r"\b(must|should|to|expects?|expected|requires?) (to )?(have |be (of )?)?(a )?rank[ =:]{1,2}\d",
        r"\b(channels?|heads?|strides?|axes) mismatch\b",
        r"\bon entry to \w+,? +parameter (number|nr\.?) +\d+ had an illegal value\b",
        r"\btotal size of (the )?new array must be unchanged\b",
        r"\bdimensions? (are|is) out of bound\b|\b(inputs?|outputs?|tensors?|arrays?|operands?) can only be of (size|shape|rank|length)\b",
        r"\bgot buffer of size \S+ which is compatible with shape\b",
        r"\bsource slice length \(\d+\) does not match destination\b",
        r"\brequires contracting dimensions to have the same shape\b|\bcontracting dimension",
        r"\bcarry input and (the )?(corresponding )?carry output\b|\bgot incompatible shapes for\b|\barrays must have same number of dimensions\b",
        r"\bGot invalid dimensions for (input|output)\b|\bInvalid rank for input\b|\binput shape:?\s*\{.{0,40}\}.{0,60}\brequested shape\b|\bcannot be reshaped to the requested shape\b",
        r"\b(last|first|second|inner|outer|trailing|leading|batch)( to last)? dimensions?\b.{0,80}\b(must|should|to|not|does not|doesn't|don't)\b.{0,40}\b(match|equal|same|be)\b",
        r"\b(must|should|expected to|to|not) (all )?have the same (shape|size|length|rank|number of (dimensions|elements|channels))\b|\bsame (first|last|batch) dimension\b",
        r"\b(expected|requires?|needs?) \d+ (dim(ension)?s?|axes|channels)\b,? ?(but )?(got|found|received)?|\bEinopsError\b|\bincompatible with the layer\b|\bexpected axis\b|\binput shape\b.{0,60}\bbut received\b|\bcould not broadcast\b|\bIncompatible shapes\b|\b(dims?|dimensions?|sizes?|shapes?|lengths?)\b.{0,40}\b(do(es)? not|don't|doesn't) (match|agree|fit|line up)\b|\b(shapes?|sizes?|dimensions?) (are|is) (incompatible|inconsistent|different|wrong)\b|\bto be: \[[\d, ]+\] but got: \[",
        r"\bnumber of dim\w* (don't|doesn't|does not|do not|must) match\b|\bnumber of (elements|channels|dimensions|features)\b.{0,60}\b(must|does not|doesn't|don't|do not|should) (match|be equal|agree)\b",
        r"\bview size is not compatible\b|\btarget size\b.{0,60}\bmust be the same as\b|\bTarget size\b.{0,40}\binput size\b|\binput\.size\(-?\d\) must be equal to\b|\bkernel size can't be greater than\b|\bmore than 1 value per channel\b",
        r"\bnormalized_shape=.{0,60}\bexpected input with shape\b|\bexpected input with shape\b|\bexpected (tensor|input|array)\b.{0,40}\b(of|with) (shape|size)\b|\binput must have \d+ (dimensions|channels)\b|\bhidden\w* .{0,12}\bsize\b.{0,20}\bgot \[|\bExpected hidden(\[\d\])? size\b",
        r"\bshape of the mask\b.{0,60}\bdoes not match\b|\bdoes not match the shape of the indexed tensor\b|\bindexing result of shape\b",
        r"\boperands could not be broadcast together\b|\bmatmul: Input operand \d has a mismatch\b|\ball the input array dimensions\b|\binhomogeneous shape\b|\bcannot be converted to (a )?rectangular\b",
        r"\bsubRange\.start \(\d+\) is not less than length\b|\bsliceDimension:withSubrange\b|\bDims must match\b|\bDimensions must be equal\b|\bInvalid shape\b",
        r"\bindex \S+ is out of bounds for (dimension|dim|axis) \d+ with size\b|\bout of bounds for (dimension|axis)\b|\bindex out of range in self\b",
        r"\bembedding dim\w*\b.{0,40}\bdivisible by\b|\bnot divisible by (num_)?(heads|groups|world)\b",
        r"\bCUDNN_STATUS_BAD_PARAM\b|\bCUBLAS_STATUS_INVALID_VALUE\b",
    ])
    .unless(LOADING)
    .without(&[r"dataloader worker process"]),
    rule(ShapeMismatch, Names, &[r"\binput types 'tensor<[^']*>' and 'tensor<[^']*>' are not broadcast compatible"])
        .check(elements_agree),
    rule(ShapeMismatch, Hints, &[r"=== Tensor Operation Error ==="]),
    rule(ShapeMismatch, Usual, &[
        r"\bCan't (concatenate|stack|squeeze|unsqueeze|narrow|reshape)\b|\binner dimension of matmul\b|\bGiven dimensions differ\b|\bprovided (slice|slices array|tensors) ha(s|ve)\b|\bdimensions? (are|is) out of bounds\b",
        r"\b(shape|shapes|sizes?|dims?|dimensions?|rank)\b.{0,60}\b(expected|got|mismatch|but)\b.{0,60}[\[(]\d+[,x\])]",
        r"\bexpected:? (shape )?[\[(]\d[\d, x]*[\])],? (but )?(got|found|actual):? (shape )?[\[(]\d",
        r"\bcan only be performed on a single dimension\b|\bTensorData shape describes\b|\bExpected \d+ tensor element\(s\)",
        r"\bresize storage that is not resizable\b|\bonly (one element|1 element) tensors?\b.{0,30}\bconverted\b",
        r"\b(must|should|need to) be divisible by\b|\bstrides? (are|is) not supported\b",
    ])
    .unless(LOADING),
    // Numbers.
    rule(Numeric, Names, &[
        r"\b(loss|losses|gradients?|grads?|grad_norm|outputs?|logits?|weights?|activations?|parameters?|tensors?|value|values|input|matrix|result|score|perplexity|metric|cost|objective|reward)\b.{0,40}\b(is|are|was|were|became|becomes?|becoming|turned|contains?|contained|containing|has|have|had|with|went|goes|equals?|=|:) ?(now |all |only |to |either |an? )?[`'(\[]?(nan|nans|inf|infs|infinite|infinity|non-?finite|-inf|\+inf)\b",
        r"\b(nan|nans|infs?|infinity|non-?finite)\b.{0,24}\b(loss|losses|gradients?|grads?|grad norm|detected|encountered|found|values? (in|encountered|detected)|outputs?|logits|produced|weights)\b",
        r"\b(found|got|contains?|produced|returned|detected|encountered|generated|has)\b.{0,24}\b(an? )?(inf or nan|nan or inf|nans? or infs?|infs? or nans?|infs?/nans?|nans?/infs?|nan values?|nans|NaN|non-?finite|infinite values?)\b",
        r"\breturned nan values\b|\bNansException\b|\bNaN(s)? (was|were) produced\b|\ball NaNs\b|\binvalid value \(nan\)|\bdebug_nans\b|\binvalid value \(inf\)",
        r"\bparameter \w+ has invalid values\b",
        r"\bprobability tensor contains\b|\bfound invalid values: ?tensor\(.{0,40}nan|\bto satisfy the constraint\b.{0,120}\bfound invalid values\b",
        r"\bFloatingPointError\b",
        r"\b(gradient )?overflow\b.{0,40}\b(detected|loss scal|skipping step)|\bloss scal(e|er|ing)\b.{0,60}\b(minimum|reduc|decreas|to:? [\d.]+|underflow|overflow|too small|zero)|\bMinimum loss scale\b|\bloss scale already at minimum\b|\bcurrent loss scale\b",
        r"\b(overflow|underflow|invalid value|divide by zero) encountered (in|while)\b",
        r"\b(infs or nans|nan or infinity|NaN, infinity)\b|\bmust not contain infs\b|\bnon-?finite values?\b",
        r"\b(svd|eigh?|cholesky|qr|inverse|lobpcg|lstsq|solve)\b.{0,80}\b(did not converge|failed to converge|not positive[- ]definite|singular|is singular)\b|\bsingular matrix\b|\bSVD did not converge\b|\bnot positive[- ]definite\b",
        r"\bcannot convert float (nan|infinity)\b|\bcannot be converted to type \S+ without overflow\b|\bout of range float values\b",
        r"\b(training|loss|model) (has )?diverged\b|\bexploding gradients?\b.{0,20}\b(detected|nan|inf)",
    ])
    .unless(&[r"\b(no|zero|without( any)?|0) (nans?|infs?)\b|\bnan[- ]check (is )?(disabled|off|passed)\b|\bmodified by an inplace operation\b"]),
    rule(Numeric, Usual, &[
        r"\b(nan|non-?finite)\b.{0,40}\b(stopping|aborting|training|step|epoch|iteration|skip)|\b(step|epoch|iter\w*)\b.{0,60}\bloss[ =:]+(nan|inf)\b|\bloss[ =:]+-?(nan|inf)\b",
        r"\bnumerical(ly)? (instability|unstable|overflow|underflow|error)\b|\bfp16 overflow\b|\bhalf[- ]precision overflow\b",
        r"\b(found|detected) (an? )?overflow\b|\boverflow\b.{0,12}\bskip(ping)?( this)? step\b",
        r"\binvalid loss\b",
        r"\bNo inf checks were recorded\b|\binf checks\b",
    ])
    .unless(&[r"\b(no|zero|without( any)?|0) (nans?|infs?)\b"]),
    rule(Numeric, Hints, &[r"\bnans?\b.{0,30}\b(check|tensor|layer)|\bunderflow\b|\ball zeros? gradients?\b"]),
    rule(ShapeMismatch, Hints, &[
        r"\b(shape|dimension|rank|stride)s?\b.{0,40}\b(invalid|wrong|unexpected|bad|illegal)\b|\b(invalid|wrong|unexpected|bad|illegal) (input |output |tensor )?(shape|dimension|rank|stride)s?\b",
    ])
    .unless(LOADING),
];
