"""Makes tiny cross-encoders with transformers, and the numbers that it gives for pairs of texts.

    python make_cross_encoders.py [FOLDER]

Each model has a tokenizer of its own, made of the words of the texts below, with the special tokens and token types of
its family, and `pairs.json`: for each pair the token ids, the token types, the number of the label and the score, which
is what `sentence_transformers.CrossEncoder.predict` gives: the number through the activation that config.json names.
Some pairs are cut to 24 tokens, from the longer text first. Needs torch, transformers and tokenizers.
"""

import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig, BertForSequenceClassification, ModernBertConfig, ModernBertForSequenceClassification,
    PreTrainedTokenizerFast, RobertaConfig, RobertaForSequenceClassification, XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

QUERIES = ["how much memory does a tensor need", "what is a device"]
DOCUMENTS = [
    "a tensor of one million numbers needs four million bytes of memory",
    "a device is what a program computes on",
    "memory",
    "the weather is fine and nobody knows why the weather is fine today",
]
LONGEST = 24
SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             initializer_range=0.3, max_position_embeddings=64, num_labels=1)


def words():
    return sorted({word for text in QUERIES + DOCUMENTS for word in text.split()})


def tokenizer(special, pair, inputs):
    """A tokenizer of whole words; `special` are its special tokens in the order of their ids, `pair` its template."""
    vocab = {token: number for number, token in enumerate(special + words())}
    own = Tokenizer(models.WordLevel(vocab, unk_token=special[3]))
    own.normalizer = normalizers.Lowercase()
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    first, last = pair.split()[0].split(":")[0], pair.split()[-1].split(":")[0]
    own.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=pair, special_tokens=[(first, vocab[first]), (last, vocab[last])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=own, model_input_names=inputs, cls_token=first, sep_token=last,
        pad_token=special[0] if special[0] not in (first, last) else special[1], unk_token=special[3],
    ), len(vocab)


BERT = (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", ["input_ids", "token_type_ids", "attention_mask"])
ROBERTA = (["<s>", "<pad>", "</s>", "<unk>"], "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0", ["input_ids", "attention_mask"])
MODERN = (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", ["input_ids", "attention_mask"])
IDENTITY = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}


def bert(vocab, **more):
    return BertForSequenceClassification(BertConfig(vocab_size=vocab, type_vocab_size=2, **SMALL, **more))


def roberta(model, config):
    ids = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1)
    return lambda vocab: model(config(vocab_size=vocab, **SMALL, **ids))


def modernbert(vocab, **more):
    own = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=8)
    return ModernBertForSequenceClassification(ModernBertConfig(vocab_size=vocab, **SMALL, **own, **more))


CASES = {
    "bert-cross": (BERT, bert, IDENTITY),
    "xlm-roberta-cross": (ROBERTA, roberta(XLMRobertaForSequenceClassification, XLMRobertaConfig), {}),
    "roberta-cross": (ROBERTA, roberta(RobertaForSequenceClassification, RobertaConfig), {
        "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}}),
    "modernbert-cross": (MODERN, modernbert, {}),
    "modernbert-cross-mean": (MODERN, lambda vocab: modernbert(
        vocab, classifier_pooling="mean", classifier_bias=True, norm_bias=True), {}),
}


def make(folder, name):
    torch.manual_seed(len(name))
    notation, model, settings = CASES[name]
    reader, vocab = tokenizer(*notation)
    model = model(vocab).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms as transformers draws them are 0 and 1, which would hide that they are left out.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    folder = folder / name
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}, indent=2) + "\n")
    pairs = []
    for query in QUERIES:
        for document in DOCUMENTS + [" ".join(DOCUMENTS)]:
            encoded = reader(query, document, truncation=True, max_length=LONGEST, return_tensors="pt",
                             return_token_type_ids=True)
            inputs = {key: value for key, value in encoded.items() if key in notation[2]}
            with torch.no_grad():
                number = model(**inputs).logits[0, 0]
            score = number if settings is IDENTITY else torch.sigmoid(number)
            pairs.append({"query": query, "document": document, "ids": encoded["input_ids"][0].tolist(),
                          "types": encoded["token_type_ids"][0].tolist(), "number": number.item(), "score": score.item()})
    lines = ",\n".join(json.dumps(pair) for pair in pairs)
    (folder / "pairs.json").write_text(f'{{"longest": {LONGEST}, "pairs": [\n{lines}\n]}}\n')
    print(name, [round(pair["number"], 3) for pair in pairs])


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "cross_encoders"
    for name in CASES:
        make(target, name)
