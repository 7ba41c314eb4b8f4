//! The README's example: a forward that is split if memory runs out and moved if a device fails.

use burn::nn::LinearConfig;
use burn::tensor::{Device, Distribution, Tensor};
use surefoot::journal::Journal;
use surefoot::place::Weights;
use surefoot::recover::{Part, Policy, Rung};
use surefoot::{BoxError, Footing};

fn main() -> Result<(), BoxError> {
    let footing = Footing::builder()
        .policy(Policy::default().forbid(Rung::Stream))
        .journal(Journal::builder().ring(64).build())
        .build()?;
    println!("on {}, because {}", footing.device()?.name(), footing.reason());

    let model = LinearConfig::new(64, 10).init(&Device::flex());
    let batch = Tensor::<2>::random([256, 64], Distribution::Default, &Device::flex());
    // Placed on the chosen device; split if memory runs out; moved on if the device is lost.
    let logits = footing.task("forward").run_split(
        Weights(model),
        batch,
        |_step, model, batch| Ok(model.forward(batch)),
        |parts: Vec<Part<Tensor<2>>>| Tensor::cat(parts.into_iter().map(|p| p.value).collect(), 0),
    )?;
    println!("{:?} logits; {} events", logits.dims(), footing.journal().recent().len());
    Ok(())
}
