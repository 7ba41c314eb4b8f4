//! A forward pass that is placed on the best device, split if memory runs out and moved on if the
//! device is lost.

use burn::nn::LinearConfig;
use burn::tensor::{Device, Distribution, Tensor};
use surefoot::prelude::*;

fn main() -> Result<(), Fault> {
    let footing = Footing::builder()
        .policy(Policy::default().forbid(Rung::Stream))
        .journal(Journal::builder().ring(64).build())
        .build()?;
    println!("on {}, because {}", footing.device()?.name(), footing.reason());

    let model = LinearConfig::new(64, 10).init(&Device::flex());
    let batch = Tensor::<2>::random([256, 64], Distribution::Default, &Device::flex());
    let outcome = footing
        .task("forward")
        .split(batch)
        .with(Weights(model))
        .run(|_step, model, batch| Ok(model.forward(batch)))?;
    println!("{:?} after {} attempt(s)", outcome.value.dims(), outcome.attempts);
    Ok(())
}
