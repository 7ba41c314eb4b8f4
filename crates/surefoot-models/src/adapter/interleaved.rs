//! The rows of queries and keys in GGUF files of Llama and related families.
//!
//! There the two numbers that a rotary embedding turns together are neighbours; in transformers, and so in PEFT's adapters, they are
//! half a head apart. The rows of an adapter's second matrix follow those of the weight that it is added to.

/// PEFT's rows of `b`, `[rows, rank]`, in the order of the file, for heads of `head` rows.
pub(super) fn to_file(b: &[f32], rank: usize, head: usize) -> Vec<f32> {
    moved(b, rank, head, |row| row % 2 * (head / 2) + row / 2)
}

/// The file's rows of `b` in PEFT's order.
pub(super) fn to_peft(b: &[f32], rank: usize, head: usize) -> Vec<f32> {
    moved(b, rank, head, |row| row % (head / 2) * 2 + row / (head / 2))
}

/// The rows of each head in another order: `from` says which row of the head comes to a place.
fn moved(b: &[f32], rank: usize, head: usize, from: impl Fn(usize) -> usize) -> Vec<f32> {
    let rows = b.len() / rank.max(1);
    let row = |at: usize| {
        let taken = at / head * head + from(at % head);
        &b[taken * rank..(taken + 1) * rank]
    };
    (0..rows).flat_map(row).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_the_file_are_half_a_head_apart_in_peft() {
        // Two heads of four rows, of rank 2.
        let b: Vec<f32> = (0..16).map(|number| number as f32).collect();
        let moved = to_file(&b, 2, 4);
        let rows: Vec<f32> = moved.chunks_exact(2).map(|row| row[0] / 2.0).collect();
        assert_eq!(rows, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        assert_eq!(to_peft(&moved, 2, 4), b);
    }
}
