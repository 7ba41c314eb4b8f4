//! An event as a line of the file, written by hand: half of what an event costs beyond the
//! kernel's `write` would be serde's. The result is byte for byte what serde gives.

use std::io;

use super::Event;
use super::event::{Context, FIRST_THREAD};

/// Appends the event's JSON, without a newline.
pub(super) fn render(event: &Event, line: &mut Vec<u8>) -> io::Result<()> {
    line.extend_from_slice(b"{\"time_us\":");
    number(line, event.time_us);
    line.extend_from_slice(b",\"pid\":");
    number(line, event.pid.into());
    if event.thread != FIRST_THREAD {
        line.extend_from_slice(b",\"thread\":");
        number(line, event.thread.into());
    }
    line.extend_from_slice(b",\"kind\":\"");
    line.extend_from_slice(event.kind.as_str().as_bytes());
    line.push(b'"');
    if event.level != event.kind.usual_level() {
        line.extend_from_slice(b",\"level\":");
        serde_json::to_writer(&mut *line, &event.level)?;
    }
    line.extend_from_slice(b",\"op\":");
    text(line, &event.op)?;
    if let Some(device) = &event.device {
        line.extend_from_slice(b",\"device\":");
        text(line, device)?;
    }
    if let Some(dtype) = &event.dtype {
        line.extend_from_slice(b",\"dtype\":");
        text(line, dtype)?;
    }
    if let Some(bytes) = event.bytes {
        line.extend_from_slice(b",\"bytes\":");
        number(line, bytes);
    }
    if let Some(duration) = event.duration_ns() {
        line.extend_from_slice(b",\"duration_ns\":");
        number(line, duration);
    }
    if let Some(fault) = &event.fault {
        line.extend_from_slice(b",\"fault\":");
        serde_json::to_writer(&mut *line, fault)?;
    }
    if let Some(recovery) = &event.recovery {
        line.extend_from_slice(b",\"recovery\":");
        text(line, recovery)?;
    }
    if !event.context.is_empty() {
        line.extend_from_slice(b",\"context\":");
        serde_json::to_writer(&mut *line, &Context(&event.context))?;
    }
    line.push(b'}');
    Ok(())
}

#[inline]
fn text(line: &mut Vec<u8>, text: &str) -> io::Result<()> {
    let plain = text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
    if !plain {
        return Ok(serde_json::to_writer(line, text)?);
    }
    line.push(b'"');
    line.extend_from_slice(text.as_bytes());
    line.push(b'"');
    Ok(())
}

#[inline]
fn number(line: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    // Two digits a division: each waits for the one before.
    while number >= 10 {
        let pair = (number % 100) as u8;
        number /= 100;
        first -= 2;
        digits[first] = b'0' + pair / 10;
        digits[first + 1] = b'0' + pair % 10;
    }
    if number > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + number as u8;
    }
    line.extend_from_slice(&digits[first..]);
}
