//! The first forward of a process, and its last.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod race;

use race::process::{children, play_role};

fn main() {
    if play_role() {
        return;
    }
    children("cold", "cpu", 50);
    println!("50 processes whose threads all began with their first forward: right");
    children("exit", "cpu", 100);
    println!("100 processes that ended with work in flight: ended well");
}
