//! The first forward of a process, and its last. `SUREFOOT_TEST_DEVICE` names another device than
//! the CPU; there fewer processes are started unless `SUREFOOT_RACE_PROCESSES` says how many, since
//! each of them compiles anew.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod race;

use race::process::{children, compiled_once, play_role};

fn main() {
    if play_role() {
        return;
    }
    let device = std::env::var("SUREFOOT_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    let cold = match std::env::var("SUREFOOT_RACE_PROCESSES") {
        Ok(count) => count.parse().unwrap(),
        Err(_) if device == "cpu" => 50,
        Err(_) => 10,
    };
    let exit = 2 * cold;
    children("cold", &device, cold);
    println!("{cold} processes whose threads all began with their first forward: right");
    let kernels = compiled_once(&device);
    assert_eq!(kernels == 0, device == "cpu", "the log of compilations was read");
    println!("{kernels} kernels, each compiled once");
    children("exit", &device, exit);
    println!("{exit} processes that ended with work in flight: ended well");
}
