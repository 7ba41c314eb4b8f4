//! Compares an operation with Burn's own composition: values, and gradients by every input.

use burn::tensor::{Device, Tensor, TensorData};
use proptest::test_runner::TestCaseError;

/// Numbers that depend on the seed alone.
pub(crate) struct Numbers(fastrand::Rng);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Between -1 and 1.
    pub(crate) fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| 2.0 * self.0.f32() - 1.0).collect()
    }
}

type Values = Vec<Vec<f32>>;

/// An operation over flat tensors.
pub(crate) trait Operation: Fn(&[Tensor<1>]) -> Tensor<1> {}

impl<F: Fn(&[Tensor<1>]) -> Tensor<1>> Operation for F {}

/// Runs both and compares values and gradients. `sizes` are the inputs'.
pub(crate) fn agree(
    seed: u64,
    sizes: &[usize],
    ours: impl Operation,
    burns: impl Operation,
) -> Result<(), TestCaseError> {
    let plain = Device::flex();
    let autodiff = Device::flex().autodiff();
    let inputs: Vec<Vec<f32>> = {
        let mut numbers = Numbers::new(seed);
        sizes.iter().map(|size| numbers.take(*size)).collect()
    };
    let right = with_gradients(&inputs, &autodiff, &burns);
    close("value and gradients", &with_gradients(&inputs, &autodiff, &ours), &right)?;
    let checkpointing = Device::flex().autodiff().gradient_checkpointing();
    close("with checkpointing", &with_gradients(&inputs, &checkpointing, &ours), &right)?;
    let alone = ours(&scaled(&tensors(&inputs, &plain))).into_data().try_to_vec::<f32>().unwrap();
    close("without autodiff", &vec![alone], &right[..1].to_vec())
}

fn tensors(inputs: &[Vec<f32>], device: &Device) -> Vec<Tensor<1>> {
    inputs
        .iter()
        .map(|input| Tensor::from_data(TensorData::new(input.clone(), [input.len()]), device))
        .collect()
}

fn scaled(inputs: &[Tensor<1>]) -> Vec<Tensor<1>> {
    inputs.iter().map(|input| input.clone().mul_scalar(1.5)).collect()
}

fn with_gradients(inputs: &[Vec<f32>], device: &Device, run: &impl Operation) -> Values {
    let inputs: Vec<Tensor<1>> =
        tensors(inputs, device).into_iter().map(|tensor| tensor.require_grad()).collect();
    // A product after and one before, so that neither end of the operation is a leaf.
    let out = run(&scaled(&inputs));
    let weights = Numbers::new(7).take(out.dims()[0]);
    let weights = Tensor::from_data(TensorData::new(weights, [out.dims()[0]]), device);
    let gradients = (out.clone() * weights).sum().backward();
    let mut values = vec![out.into_data().try_to_vec::<f32>().unwrap()];
    for input in &inputs {
        let gradient = input.grad(&gradients).unwrap();
        values.push(gradient.into_data().try_to_vec::<f32>().unwrap());
    }
    values
}

fn close(what: &str, is: &Values, should: &Values) -> Result<(), TestCaseError> {
    for (at, (is, should)) in is.iter().zip(should).enumerate() {
        // What goes in is about 1 in size, so a sum of it that cancels to less is off by as much as
        // one that doesn't.
        let size = should.iter().fold(1.0f32, |size, value| size.max(value.abs()));
        for (place, (is, should)) in is.iter().zip(should).enumerate() {
            let off = (is - should).abs() / size;
            if off.is_nan() || off > 2e-5 {
                let text = format!("{what}: {at}, {place}: {is}, not {should}");
                return Err(TestCaseError::fail(text));
            }
        }
        if is.len() != should.len() {
            return Err(TestCaseError::fail(format!("{what}: {at}: another length")));
        }
    }
    Ok(())
}

/// The whole of this crate's unit tests once more, restricted to AVX2.
#[test]
#[cfg(target_arch = "x86_64")]
fn all_tests_pass_with_avx2_alone() {
    const NAME: &str = "testing::all_tests_pass_with_avx2_alone";
    if std::env::var_os("SUREFOOT_CPU").is_none() {
        let tests = std::env::current_exe().unwrap();
        let run = std::process::Command::new(tests)
            .args(["--skip", NAME])
            .env("SUREFOOT_CPU", "avx2")
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
        assert!(String::from_utf8_lossy(&run.stdout).contains("attention::tests"));
    }
}
