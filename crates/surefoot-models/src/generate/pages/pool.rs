//! Pages of keys and values, taken as they are needed and never more than a number of them.
//!
//! A page belongs to whoever holds it; when the last holder is gone its memory is kept for the next page, until
//! [`PagePool::release_spare`]. Only a page with a single holder is written.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use surefoot_ops::PageLayout;

/// A page begins at a multiple of so many bytes, a line of the processor's cache, so that no vector lies in two lines.
const LINE: usize = 64;
/// Numbers that a page's memory has more than the page, so that the page can begin there.
const SPARE: usize = LINE / size_of::<f32>() - 1;

/// The keys and values of some tokens.
#[derive(Debug)]
pub(crate) struct Page {
    /// [`SPARE`] of them are not used: those before the page begins, and as many as are left behind it.
    numbers: Box<[f32]>,
    pool: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    in_use: AtomicUsize,
    spare: Mutex<Vec<Box<[f32]>>>,
}

impl Page {
    pub(crate) fn numbers(&self) -> &[f32] {
        &self.numbers[self.place()]
    }

    pub(crate) fn numbers_mut(&mut self) -> &mut [f32] {
        let place = self.place();
        &mut self.numbers[place]
    }

    /// Where the page is in its memory.
    fn place(&self) -> Range<usize> {
        // Where a pointer can't be aligned, the page begins as the memory does.
        let first = match self.numbers.as_ptr().align_offset(LINE) {
            first if first <= SPARE => first,
            _ => 0,
        };
        first..self.numbers.len() - (SPARE - first)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.numbers);
        self.pool.in_use.fetch_sub(1, Ordering::Relaxed);
        self.pool.spare.lock().unwrap_or_else(PoisonError::into_inner).push(numbers);
    }
}

/// Gives out pages.
#[derive(Debug)]
pub(crate) struct PagePool {
    layout: PageLayout,
    most: usize,
    shared: Arc<Shared>,
}

impl PagePool {
    /// A pool of at most `most` pages, none of which takes memory yet.
    pub(crate) fn new(layout: PageLayout, most: usize) -> Self {
        Self { layout, most, shared: Arc::default() }
    }

    pub(crate) fn layout(&self) -> PageLayout {
        self.layout
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn in_use(&self) -> usize {
        self.shared.in_use.load(Ordering::Relaxed)
    }

    /// A page of zeros, unless all are in use.
    pub(crate) fn take(&self) -> Option<Arc<Page>> {
        if self.in_use() >= self.most {
            return None;
        }
        self.shared.in_use.fetch_add(1, Ordering::Relaxed);
        let spare = self.shared.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let numbers = match spare {
            // What is not written yet is multiplied by 0, so it must be finite.
            Some(mut numbers) => {
                numbers.fill(0.0);
                numbers
            }
            None => vec![0.0; self.layout.numbers() + SPARE].into_boxed_slice(),
        };
        Some(Arc::new(Page { numbers, pool: Arc::clone(&self.shared) }))
    }

    /// Gives the memory of pages that are not in use back to the system.
    pub(crate) fn release_spare(&self) {
        self.shared.spare.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also of pages whose memory was used before.
    #[test]
    fn a_page_has_all_its_numbers_and_begins_with_a_line_of_the_cache() {
        for head_dim in [1, 3, 64] {
            let layout = PageLayout { layers: 1, kv_heads: 1, head_dim };
            let pool = PagePool::new(layout, 4);
            for _ in 0..3 {
                let mut pages: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
                assert!(pool.take().is_none());
                for page in &mut pages {
                    let numbers = Arc::get_mut(page).unwrap().numbers_mut();
                    assert_eq!(numbers.len(), layout.numbers());
                    assert_eq!(numbers.as_ptr().addr() % LINE, 0);
                    assert!(numbers.iter().all(|number| *number == 0.0));
                    numbers.fill(1.0);
                }
            }
        }
    }
}
