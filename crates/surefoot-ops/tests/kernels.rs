//! The operations mean the same on a GPU as on the processor, where other kernels do them: values and gradients, with
//! activations kept and recomputed, for sizes below and above what a cube and a band of rows take.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use surefoot_ops as ops;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| 2.0 * random.f32() - 1.0).collect()
}

type Operation = Box<dyn Fn(&[Tensor<1>]) -> Tensor<1>>;

/// A name, the sizes of the inputs, and the operation on them.
type Case = (String, Vec<usize>, Operation);

/// Batches of matrices, of which the left side may have one matrix for all.
fn matmul(batches: [usize; 2], [rows, depth, columns]: [usize; 3]) -> Case {
    let of_left = [batches[0], 1, rows, depth];
    let of_right = [batches[0], batches[1], columns, depth];
    let run = move |t: &[Tensor<1>]| {
        let (left, right) = (t[0].clone().reshape(of_left), t[1].clone().reshape(of_right));
        ops::matmul(left, right.swap_dims(2, 3)).flatten(0, 3)
    };
    let name = format!("matmul {batches:?} {rows} {depth} {columns}");
    (name, vec![of_left.iter().product(), of_right.iter().product()], Box::new(run))
}

fn layer_norm(rows: usize, width: usize) -> Case {
    let run = move |t: &[Tensor<1>]| {
        let x = t[0].clone().reshape([rows, width]);
        ops::layer_norm(x, t[1].clone(), t[2].clone(), 1e-5).flatten(0, 1)
    };
    (format!("layer_norm {rows} {width}"), vec![rows * width, width, width], Box::new(run))
}

fn linear(rows: usize, inputs: usize, outputs: usize, residual: bool) -> Case {
    let mut sizes = vec![rows * inputs, inputs * outputs, outputs];
    if residual {
        sizes.push(rows * outputs);
    }
    let run = move |t: &[Tensor<1>]| {
        let x = t[0].clone().reshape([rows, inputs]);
        let weight = t[1].clone().reshape([inputs, outputs]);
        let around = t.get(3).map(|around| around.clone().reshape([rows, outputs]));
        ops::linear(x, weight, t[2].clone(), around).flatten(0, 1)
    };
    (format!("linear {rows} {inputs} {outputs} {residual}"), sizes, Box::new(run))
}

fn attention(samples: usize, tokens: usize, heads: usize, each: usize) -> Case {
    let shape = [samples, tokens, 3 * heads * each];
    let run = move |t: &[Tensor<1>]| {
        ops::causal_attention(t[0].clone().mul_scalar(2.0).reshape(shape), heads).flatten(0, 2)
    };
    let name = format!("causal_attention {samples} {tokens} {heads} {each}");
    (name, vec![shape.iter().product()], Box::new(run))
}

fn cross_entropy(rows: usize, width: usize) -> Case {
    let run = move |t: &[Tensor<1>]| {
        let classes: Vec<i32> = (0..rows).map(|row| (row * 7 % width) as i32).collect();
        let classes = TensorData::new(classes, [rows]);
        let targets = Tensor::<1, Int>::from_data(classes, &t[0].device());
        let logits = t[0].clone().mul_scalar(9.0).reshape([rows, width]);
        ops::cross_entropy(logits, targets)
    };
    (format!("cross_entropy {rows} {width}"), vec![rows * width], Box::new(run))
}

fn embedding(rows: usize, width: usize, count: usize) -> Case {
    let run = move |t: &[Tensor<1>]| {
        let ids: Vec<i32> = (0..count).map(|at| (at * at % rows) as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &t[0].device());
        ops::embedding(t[0].clone().reshape([rows, width]), ids).flatten(0, 1)
    };
    (format!("embedding {rows} {width} {count}"), vec![rows * width], Box::new(run))
}

fn gelu(size: usize) -> Case {
    let run = |t: &[Tensor<1>]| ops::gelu(t[0].clone().mul_scalar(4.0));
    (format!("gelu {size}"), vec![size], Box::new(run))
}

/// Images of three samples, and square kernels.
fn conv(
    inputs: usize,
    outputs: usize,
    image: [usize; 2],
    [kernel, stride, padding]: [usize; 3],
) -> Case {
    let of_x = [3, inputs, image[0], image[1]];
    let of_weight = [outputs, inputs, kernel, kernel];
    let run = move |t: &[Tensor<1>]| {
        let (x, weight) = (t[0].clone().reshape(of_x), t[1].clone().reshape(of_weight));
        ops::conv2d(x, weight, stride, padding).flatten(0, 3)
    };
    let name = format!("conv2d {inputs} {outputs} {image:?} {kernel} {stride} {padding}");
    (name, vec![of_x.iter().product(), of_weight.iter().product()], Box::new(run))
}

fn operations() -> Vec<Case> {
    let norm = ops::GroupNorm { groups: 2, epsilon: 1e-5, relu: true };
    let image = [2, 4, 5, 5];
    vec![
        (
            "conv2d".to_owned(),
            vec![200, 6 * 4 * 9],
            Box::new(move |t| {
                let weight = t[1].clone().reshape([6, 4, 3, 3]);
                ops::conv2d(t[0].clone().reshape(image), weight, 2, 1).flatten(0, 3)
            }),
        ),
        (
            "group_norm".to_owned(),
            vec![200, 4, 4, 200],
            Box::new(move |t| {
                let [x, around] = [0, 3].map(|at| t[at].clone().reshape(image));
                ops::group_norm(x, t[1].clone(), t[2].clone(), Some(around), norm).flatten(0, 3)
            }),
        ),
        // Channels below and above what a cube and a run take, and kernels that reach over the edge or leave some pixels out.
        conv(1, 1, [4, 5], [1, 1, 0]),
        conv(20, 19, [9, 7], [3, 1, 1]),
        conv(16, 8, [12, 12], [3, 2, 1]),
        conv(5, 9, [11, 8], [5, 3, 2]),
        conv(3, 4, [7, 7], [1, 2, 0]),
        // Too large a kernel for ours.
        conv(2, 3, [9, 9], [7, 1, 3]),
        // Sizes that tiles of our own do not take, and one that they do.
        matmul([2, 3], [9, 6, 7]),
        matmul([1, 1], [33, 50, 257]),
        matmul([1, 1], [1, 40, 9]),
        matmul([2, 1], [64, 32, 64]),
        layer_norm(5, 12),
        layer_norm(1, 300),
        layer_norm(70, 33),
        linear(5, 12, 7, true),
        linear(70, 3, 40, false),
        // The weight's gradient in four parts.
        linear(256, 5, 9, true),
        // Tiles of our own product, whole and cut off; with the gradients of weight and bias in parts, in one part, and apart.
        linear(130, 48, 80, true),
        linear(64, 36, 68, false),
        linear(256, 160, 132, false),
        linear(64, 32, 64, true),
        // Enough wide tiles, forwards and for the weight's gradient.
        linear(2048, 32, 2064, false),
        gelu(50),
        gelu(1000),
        attention(2, 6, 2, 4),
        // Heads that are multiplied where they are.
        attention(2, 48, 2, 32),
        attention(1, 144, 3, 64),
        attention(1, 70, 3, 5),
        attention(2, 130, 1, 64),
        // Tiles of which causal attention leaves some out, and parts of others.
        attention(1, 320, 2, 32),
        embedding(7, 3, 50),
        embedding(90, 300, 40),
        cross_entropy(5, 7),
        cross_entropy(40, 300),
    ]
}

fn tensor(seed: u64, size: usize, device: &Device) -> Tensor<1> {
    Tensor::<1>::from_data(TensorData::new(numbers(seed, size), [size]), device)
}

fn read(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().unwrap()
}

/// The value, and the gradient by each input.
fn run(operation: &Operation, sizes: &[usize], device: &Device) -> Vec<Vec<f32>> {
    let inputs: Vec<Tensor<1>> = (0u64..)
        .zip(sizes)
        .map(|(seed, size)| tensor(seed, *size, device).require_grad())
        .collect();
    // A product before and one after, so that neither end of the operation is a leaf.
    let scaled: Vec<Tensor<1>> = inputs.iter().map(|input| input.clone().mul_scalar(1.5)).collect();
    let out = operation(&scaled);
    let gradients = (out.clone() * tensor(9, out.dims()[0], device)).sum().backward();
    let of_inputs = inputs.iter().map(|input| input.grad(&gradients).unwrap());
    std::iter::once(out).chain(of_inputs).map(read).collect()
}

fn close(name: &str, is: &[Vec<f32>], should: &[Vec<f32>]) {
    assert_eq!(is.len(), should.len());
    for (at, (is, should)) in is.iter().zip(should).enumerate() {
        assert_eq!(is.len(), should.len(), "{name}: {at}");
        let size = should.iter().fold(1e-3f32, |size, value| size.max(value.abs()));
        for (is, should) in is.iter().zip(should) {
            assert!((is - should).abs() <= 1e-4 * size, "{name}: {at}: {is}, not {should}");
        }
    }
}

#[test]
fn every_operation_gives_the_processors_values_and_gradients() {
    let Some(gpu) = testkit::gpu() else { return };
    for (name, sizes, operation) in operations() {
        let should = run(&operation, &sizes, &Device::flex().autodiff());
        let device = gpu.burn().clone().autodiff();
        close(&name, &run(&operation, &sizes, &device), &should);
        let recomputing = gpu.burn().clone().autodiff().gradient_checkpointing();
        close(&name, &run(&operation, &sizes, &recomputing), &should);
        let inputs = (0u64..).zip(&sizes);
        let plain: Vec<Tensor<1>> =
            inputs.map(|(seed, size)| tensor(seed, *size, gpu.burn()).mul_scalar(1.5)).collect();
        close(&name, &[read(operation(&plain))], &should[..1]);
    }
}

#[test]
fn a_class_that_does_not_exist_makes_the_loss_no_number() {
    let Some(gpu) = testkit::gpu() else { return };
    let logits = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [0.0, 0.5, 0.0]], gpu.burn());
    let loss = |classes: [i32; 2]| {
        let targets = Tensor::<1, Int>::from_data(classes, gpu.burn());
        ops::cross_entropy(logits.clone(), targets).into_scalar::<f32>()
    };
    // ln(e^-2 + e^-1 + 1) + ln(1 + 2 e^-0.5)
    assert!((loss([2, 1]) - 1.201_983).abs() < 1e-4, "{}", loss([2, 1]));
    assert!(loss([2, 3]).is_nan());
    assert!(loss([-1, 1]).is_nan());
}

const STEP: ops::AdamW = ops::AdamW {
    factor: 0.5,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-8,
    keep: 0.9,
    rate: 0.1,
    start: 0.4,
};

#[test]
fn an_update_is_the_processors() {
    let Some(gpu) = testkit::gpu() else { return };
    let updated = |device: &Device| {
        let tensor = |seed: u64| tensor(seed, 40, device).abs();
        let (value, first, second) = ops::adamw(tensor(1), tensor(2), tensor(3), tensor(4), STEP);
        let step = ops::Sgd { factor: 0.5, momentum: 0.9, decay: 0.1, rate: 0.2 };
        let (moved, speed) = ops::sgd(tensor(1), tensor(2), tensor(3), step);
        [value, first, second, moved, speed].map(read)
    };
    close("update", &updated(gpu.burn()), &updated(&Device::flex()));
}

/// More than one launch packs, with sizes around where views may begin.
const SIZES: [usize; 19] =
    [1, 127, 128, 129, 300, 2, 256, 5, 1000, 64, 3, 128, 7, 512, 31, 8, 640, 33, 77];

#[test]
fn packed_tensors_are_those_that_were_packed() {
    let Some(gpu) = testkit::gpu() else { return };
    let tensors: Vec<Tensor<1>> =
        (0u64..).zip(SIZES).map(|(seed, size)| tensor(seed, size, gpu.burn())).collect();
    let packed = ops::Packed::new(&tensors).unwrap();
    let parts = packed.parts();
    assert_eq!(parts.len(), SIZES.len());
    for ((seed, size), part) in (0u64..).zip(SIZES).zip(parts) {
        assert_eq!(read(part), numbers(seed, size), "{seed}");
    }
    let all: Vec<f32> = (0u64..).zip(SIZES).flat_map(|(seed, size)| numbers(seed, size)).collect();
    let sum: f64 = all.iter().map(|x| f64::from(*x)).sum();
    let squares: f64 = all.iter().map(|x| f64::from(x * x)).sum();
    let is = [false, true].map(|squared| f64::from(packed.sum(squared).into_scalar::<f32>()));
    assert!((is[0] - sum).abs() < 1e-3 && (is[1] - squares).abs() < 1e-2, "{is:?} {sum} {squares}");
    assert_eq!(read(packed.zeros().parts().remove(3)), vec![0.0; SIZES[3]]);
    let firsts: Vec<f32> = (0u64..).zip(SIZES).map(|(seed, size)| numbers(seed, size)[0]).collect();
    assert_eq!(read(ops::first_numbers(&tensors).unwrap()), firsts);
}

#[test]
fn one_bad_number_shows_in_both_sums() {
    let Some(gpu) = testkit::gpu() else { return };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut tensors = vec![tensor(1, 5000, gpu.burn()), tensor(2, 3, gpu.burn())];
        let sums = |tensors: &[Tensor<1>]| {
            let packed = ops::Packed::new(tensors).unwrap();
            [false, true].map(|squared| packed.sum(squared).into_scalar::<f32>().is_finite())
        };
        assert_eq!(sums(&tensors), [true, true]);
        tensors[1] = Tensor::from_floats([1.0, bad, 1.0], gpu.burn());
        assert_eq!(sums(&tensors), [false, false], "{bad}");
    }
}

#[test]
fn a_packed_update_is_that_of_each_parameter_on_the_processor() {
    let Some(gpu) = testkit::gpu() else { return };
    const DECAYING: usize = 8;
    let given = |seed: u64, device: &Device| {
        let one = |(at, size): (u64, usize)| tensor(100 * seed + at, size, device).abs();
        (0u64..).zip(SIZES).map(one).collect::<Vec<Tensor<1>>>()
    };
    let [values, gradients, first, second] =
        [1, 2, 3, 4].map(|seed| ops::Packed::new(&given(seed, gpu.burn())).unwrap());
    assert!(values.is_alike(&gradients));
    // The length is 0.5 · √squares; clipped to half of that, the factor is half of what it was.
    let squares = gradients.sum(true);
    let longest = 0.25 * f64::from(squares.clone().into_scalar::<f32>()).sqrt();
    let clip = ops::Clip { squares: squares.clone(), longest };
    let inputs = [&values, &gradients, &first, &second];
    let clipped = ops::adamw_packed(inputs, Some(clip), STEP, DECAYING);
    let halved = ops::AdamW { factor: 0.25, ..STEP };
    let should = ops::adamw_packed(inputs, None, halved, DECAYING);
    for (is, should) in clipped.iter().zip(&should) {
        close("clipped", &[read(is.whole())], &[read(should.whole())]);
    }
    let clip = Some(ops::Clip { squares, longest: 1e9 });
    let is = ops::adamw_packed(inputs, clip, STEP, DECAYING);
    let is = is.map(|packed| packed.parts());
    let cpu = Device::flex();
    let [values, gradients, first, second] = [1, 2, 3, 4].map(|seed| given(seed, &cpu));
    for at in 0..SIZES.len() {
        let keep = if at < DECAYING { STEP.keep } else { 1.0 };
        let step = ops::AdamW { keep, ..STEP };
        let [value, gradient, first, second] =
            [&values, &gradients, &first, &second].map(|tensors| tensors[at].clone());
        let should = ops::adamw(value, gradient, first, second, step);
        let should = [should.0, should.1, should.2].map(read);
        let is = is.each_ref().map(|tensors| read(tensors[at].clone()));
        close(&format!("parameter {at}"), &is, &should);
    }
}

#[test]
fn nothing_is_packed_on_the_processor() {
    assert!(ops::Packed::new(&[tensor(1, 5, &Device::flex())]).is_none());
    assert!(ops::Packed::new(&[]).is_none());
}

#[test]
fn launches_are_counted() {
    let Some(gpu) = testkit::gpu() else { return };
    let x = tensor(1, 1000, gpu.burn());
    let (out, launches) = ops::count_launches(|| read(ops::gelu(x)));
    assert_eq!(out.len(), 1000);
    // Other tests may launch kernels meanwhile, and nobody else counts them.
    assert!(launches.values().sum::<u64>() >= 1, "{launches:?}");
    assert!(launches.keys().any(|name| name.to_lowercase().contains("gelu")), "{launches:?}");
}

/// A tensor of random numbers, the same on each device.
fn shaped<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::<D>::from_data(TensorData::new(numbers(seed, shape.iter().product()), shape), device)
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().unwrap()
}

#[test]
fn a_product_with_a_few_columns_is_the_processors() {
    let Some(gpu) = testkit::gpu() else { return };
    let half = FloatDType::F16;
    let is_half = gpu.burn().supports_dtype(half);
    // Widths below and above what the units of a row read at once; the last two are left to Burn.
    for (rows, width, columns) in
        [(1, 4, 1), (7, 36, 1), (300, 640, 1), (30, 516, 3), (129, 128, 8), (9, 6, 2), (20, 64, 9)]
    {
        let given = |device: &Device| {
            (shaped(1, [rows, width], device), shaped(2, [columns, width], device).transpose())
        };
        let product = |device: &Device| {
            let (weight, x) = given(device);
            flat(ops::product(weight, false, x))
        };
        let name = format!("{rows} {width} {columns}");
        close(&name, &[product(gpu.burn())], &[product(&Device::flex())]);
        if is_half {
            let (weight, x) = given(gpu.burn());
            let is = ops::product(weight.cast(half), false, x).cast(FloatDType::F32);
            let (weight, x) = given(&Device::flex());
            let rounded = |tensor: Tensor<2>| tensor.cast(half).cast(FloatDType::F32);
            let should = flat(rounded(weight).matmul(rounded(x)));
            let size = should.iter().fold(1e-3f32, |size, value| size.max(value.abs()));
            for (is, should) in flat(is).iter().zip(&should) {
                // Burn's product rounds its result too.
                assert!((is - should).abs() <= 2e-3 * size, "{name} in f16: {is}, not {should}");
            }
        }
    }
}

#[test]
fn a_linear_layer_in_half_precision_is_that_of_rounded_numbers() {
    let Some(gpu) = testkit::gpu() else { return };
    let half = FloatDType::F16;
    if !gpu.burn().supports_dtype(half) {
        return;
    }
    for (rows, inputs, outputs) in [(5, 12, 7), (256, 64, 96), (130, 48, 80)] {
        let run = |device: &Device, rounded: bool| {
            let device = device.clone().autodiff();
            let x = shaped(1, [rows, inputs], &device).require_grad();
            let weight = shaped(2, [inputs, outputs], &device).require_grad();
            let bias = shaped(3, [outputs], &device).require_grad();
            let around = shaped(4, [rows, outputs], &device).require_grad();
            let given = [&x, &weight].map(|tensor| match rounded {
                true => tensor.clone().cast(half).cast(FloatDType::F32),
                false => tensor.clone(),
            });
            let [left, right] = given;
            let (bias_given, around_given) = (bias.clone(), Some(around.clone()));
            let out = match rounded {
                true => ops::linear(left, right, bias_given, around_given),
                false => ops::half_linear(left, right, bias_given, around_given, half),
            };
            let factors = shaped(5, [rows, outputs], &device);
            let gradients = (out.clone() * factors).sum().backward();
            let bias = flat(bias.grad(&gradients).unwrap());
            let of = [&x, &weight, &around].map(|tensor| flat(tensor.grad(&gradients).unwrap()));
            let [x, weight, around] = of;
            [flat(out), x, weight, around, bias]
        };
        let (is, should) = (run(gpu.burn(), false), run(&Device::flex(), true));
        for (at, (is, should)) in is.iter().zip(&should).enumerate() {
            assert_eq!(is.len(), should.len());
            let size = should.iter().fold(1e-3f32, |size, value| size.max(value.abs()));
            for (is, should) in is.iter().zip(should) {
                // The gradient is rounded for its products as well: 11 bits.
                let message = format!("{rows} {inputs} {outputs}: {at}: {is}, not {should}");
                assert!((is - should).abs() <= 4e-3 * size, "{message}");
            }
        }
    }
}

/// The value and the gradient by each input of an operation on tensors of these shapes, which are rounded before it if `rounded`.
fn in_half<const D: usize>(
    shapes: &[[usize; D]],
    device: &Device,
    rounded: bool,
    operation: impl Fn(&[Tensor<D>]) -> Tensor<1>,
) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let inputs: Vec<Tensor<D>> = (0u64..)
        .zip(shapes)
        .map(|(seed, shape)| shaped(seed, *shape, &device).require_grad())
        .collect();
    let round = |tensor: &Tensor<D>| match rounded {
        true => tensor.clone().cast(FloatDType::F16).cast(FloatDType::F32),
        false => tensor.clone(),
    };
    let given: Vec<Tensor<D>> = inputs.iter().map(round).collect();
    let out = operation(&given);
    let factors = shaped(9, out.dims(), &device);
    let gradients = (out.clone() * factors).sum().backward();
    let of_inputs = inputs.iter().map(|input| flat(input.grad(&gradients).unwrap()));
    std::iter::once(flat(out.clone())).chain(of_inputs).collect()
}

/// Alike but for rounding, of which the gradient's comes in as well: 11 bits.
fn alike_in_half(name: &str, is: &[Vec<f32>], should: &[Vec<f32>]) {
    assert_eq!(is.len(), should.len());
    for (at, (is, should)) in is.iter().zip(should).enumerate() {
        assert_eq!(is.len(), should.len(), "{name}: {at}");
        let size = should.iter().fold(1e-3f32, |size, value| size.max(value.abs()));
        for (is, should) in is.iter().zip(should) {
            assert!((is - should).abs() <= 4e-3 * size, "{name}: {at}: {is}, not {should}");
        }
    }
}

#[test]
fn a_convolution_in_half_precision_is_that_of_rounded_numbers() {
    let Some(gpu) = testkit::gpu() else { return };
    let half = FloatDType::F16;
    if !gpu.burn().supports_dtype(half) {
        return;
    }
    for (inputs, outputs, image, [kernel, stride, padding]) in [
        (3, 8, [9, 7], [3, 1, 1]),
        (20, 19, [8, 8], [3, 2, 1]),
        (5, 9, [11, 8], [5, 3, 2]),
        (6, 4, [6, 6], [1, 2, 0]),
    ] {
        let shapes = [[3, inputs, image[0], image[1]], [outputs, inputs, kernel, kernel]];
        let is = in_half(&shapes, gpu.burn(), false, |t| {
            ops::half_conv2d(t[0].clone(), t[1].clone(), stride, padding, half).flatten(0, 3)
        });
        let should = in_half(&shapes, &Device::flex(), true, |t| {
            ops::conv2d(t[0].clone(), t[1].clone(), stride, padding).flatten(0, 3)
        });
        alike_in_half(&format!("{shapes:?} {stride} {padding}"), &is, &should);
    }
    // 2049 is no number of fp16, whose next ones are 2048 and 2050; and the result is not rounded.
    let number = |x: f32| Tensor::<4>::from_floats([[[[x]]]], gpu.burn());
    let out = ops::half_conv2d(number(2049.0), number(1.5), 1, 0, half);
    // NVIDIA's Vulkan driver leaves out that a number is rounded to fp16 and back, which makes the result more exact.
    let out = out.into_scalar::<f32>();
    assert!(out == 3072.0 || out == 3073.5, "{out}");
    let out = ops::half_conv2d(number(2050.0), number(1.0009766), 1, 0, half);
    assert_eq!(out.into_scalar::<f32>(), 2050.0 * 1.0009766);
}

#[test]
fn attention_in_half_precision_is_that_of_rounded_numbers() {
    let Some(gpu) = testkit::gpu() else { return };
    let half = FloatDType::F16;
    if !gpu.burn().supports_dtype(half) {
        return;
    }
    // Heads that are multiplied where they are, whole tiles and cut off ones, and heads that are copied.
    for (samples, tokens, heads, each) in
        [(1, 48, 2, 32), (2, 256, 2, 64), (1, 144, 3, 64), (1, 9, 2, 5)]
    {
        let shapes = [[samples, tokens, 3 * heads * each]];
        let is = in_half(&shapes, gpu.burn(), false, |t| {
            ops::half_causal_attention(t[0].clone(), heads, half).flatten(0, 2)
        });
        let should = in_half(&shapes, &Device::flex(), true, |t| {
            ops::causal_attention(t[0].clone(), heads).flatten(0, 2)
        });
        alike_in_half(&format!("{samples} {tokens} {heads} {each}"), &is, &should);
    }
}

#[test]
fn rms_norm_is_its_formula() {
    let Some(gpu) = testkit::gpu() else { return };
    for (rows, width) in [(1, 5), (3, 300), (70, 64)] {
        let given =
            |device: &Device| (shaped(1, [rows, width], device), shaped(2, [width], device));
        let (x, gamma) = given(gpu.burn());
        let is = flat(ops::rms_norm(&x, &gamma, 1e-5).unwrap());
        let (x, gamma) = given(&Device::flex());
        let mean = (x.clone() * x.clone()).mean_dim(1);
        let should = x / (mean + 1e-5).sqrt() * gamma.unsqueeze();
        close("rms_norm", &[is], &[flat(should)]);
    }
}

#[test]
fn a_gate_is_its_formula() {
    let Some(gpu) = testkit::gpu() else { return };
    let given = |device: &Device| [1, 2].map(|seed| shaped(seed, [7, 90], device).mul_scalar(9.0));
    let [gate, value] = given(gpu.burn());
    let is = flat(ops::gated_silu(&gate, &value).unwrap());
    let [gate, value] = given(&Device::flex());
    close("gated_silu", &[is], &[flat(burn::tensor::activation::silu(gate) * value)]);
}

#[test]
fn a_rotation_turns_each_pair_by_its_angle() {
    let Some(gpu) = testkit::gpu() else { return };
    // In memory as a layer gives it: each head's numbers token by token.
    let (batch, width, heads, each, pairs) = (2, 3, 2, 10, 4);
    let angles: Vec<f32> = numbers(5, batch * width * pairs);
    for (interleaved, tables) in [(false, 1), (true, 1), (false, batch)] {
        let table = |of: fn(f32) -> f32| {
            let shape = [tables, 1, width, pairs];
            let angles = angles[..shape.iter().product()].iter().map(|angle| of(*angle));
            Tensor::<4>::from_data(TensorData::new(angles.collect::<Vec<_>>(), shape), gpu.burn())
        };
        let x = shaped(1, [batch, width, heads, each], gpu.burn()).swap_dims(1, 2);
        let is = flat(ops::rotate(&x, &table(f32::cos), &table(f32::sin), interleaved).unwrap());
        let given = numbers(1, batch * width * heads * each);
        let mut should = Vec::new();
        for sample in 0..batch {
            for head in 0..heads {
                for token in 0..width {
                    let first = ((sample * width + token) * heads + head) * each;
                    let x = &given[first..first + each];
                    let pair = |at: usize| {
                        let places =
                            if interleaved { [2 * at, 2 * at + 1] } else { [at, at + pairs] };
                        let angle = angles[((sample % tables) * width + token) * pairs + at];
                        (places.map(|place| x[place]), angle.cos(), angle.sin())
                    };
                    let turned = |at: usize| {
                        let ([first, second], cos, sin) = pair(at);
                        [first * cos - second * sin, second * cos + first * sin]
                    };
                    should.extend((0..pairs).map(|at| turned(at)[0]));
                    should.extend((0..pairs).map(|at| turned(at)[1]));
                    should.extend(&x[2 * pairs..]);
                }
            }
        }
        close("rotate", &[is], &[should]);
    }
}

#[test]
fn attention_to_a_cache_is_that_of_its_formula() {
    let Some(gpu) = testkit::gpu() else { return };
    for (batch, heads, kv_heads, count, seen, each) in
        [(1, 2, 1, 1, 1, 4), (2, 4, 2, 1, 70, 16), (1, 2, 2, 3, 300, 128), (3, 6, 2, 1, 129, 33)]
    {
        let capacity = seen + 5;
        let given = |device: &Device| {
            let cache = |seed| {
                let all = shaped(seed, [batch, kv_heads, capacity, each], device).mul_scalar(2.0);
                all.narrow(2, 2, seen)
            };
            (shaped(1, [batch, heads, count, each], device), cache(2), cache(3))
        };
        let (query, keys, values) = given(gpu.burn());
        let is = flat(ops::attend_to_all(&query, &keys, &values, 0.7).unwrap());
        let (query, keys, values) = given(&Device::flex());
        let group = heads / kv_heads;
        let query = query.reshape([batch, kv_heads, group * count, each]);
        let scores = query.matmul(keys.swap_dims(2, 3)).mul_scalar(0.7);
        let should = burn::tensor::activation::softmax(scores, 3).matmul(values);
        close("attend_to_all", &[is], &[flat(should)]);
    }
}

#[test]
fn what_has_no_kernel_is_left_to_the_caller() {
    let Some(gpu) = testkit::gpu() else { return };
    let on = |device: &Device| {
        let x = shaped(1, [2, 8], device);
        ops::rms_norm(&x, &shaped(2, [8], device), 1e-5).is_some()
    };
    assert!(on(gpu.burn()));
    assert!(on(&Device::flex()));
    assert!(!on(&gpu.burn().clone().autodiff()));
    assert!(!on(&Device::flex().autodiff()));
    let many = shaped(1, [1, 1, ops::MOST_QUERIES + 1, 4], gpu.burn());
    assert!(ops::attend_to_all(&many, &many, &many, 1.0).is_none());
}
