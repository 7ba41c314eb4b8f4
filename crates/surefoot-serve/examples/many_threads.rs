//! Many threads run one model on one device, each on a lane of its own.
//!
//! `cargo run --release -p surefoot-serve --example many_threads`

use std::sync::Arc;
use std::time::Instant;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use surefoot::Footing;
use surefoot_serve::lanes::{Lanes, MOST_LANES};

const THREADS: usize = 16;
const FORWARDS: usize = 50;
const WIDTH: usize = 64;

fn forward(model: &Linear, device: &Device, number: f32) -> Result<f32, String> {
    let input = TensorData::new(vec![number; WIDTH], [1, WIDTH]);
    let output = model.forward(Tensor::<2>::from_data(input, device)).mean();
    // Read inside of the lane: this waits for the lane's own stream only.
    let value = output.into_data().iter::<f32>().next();
    value.ok_or_else(|| "the model gave no number".to_owned())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let footing = Footing::builder().build()?;
    let device = footing.device()?;
    let model = Arc::new(LinearConfig::new(WIDTH, WIDTH).init(device.burn()));
    let lanes = Lanes::new(device, MOST_LANES);
    let alone = forward(&model, lanes.device().burn(), 1.0)?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..FORWARDS {
                        let model = Arc::clone(&model);
                        // The key names what is compiled once: here one model in one shape.
                        let value = lanes
                            .run(&"linear 1x64", move |device| forward(&model, device, 1.0))?;
                        if value != alone {
                            return Err(format!("{value} is not {alone}"));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        })
    })?;
    println!(
        "{} forwards by {THREADS} threads on {} lanes of {} in {:.1} ms, all equal",
        THREADS * FORWARDS,
        lanes.statistics().active,
        lanes.device().name(),
        begun.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
