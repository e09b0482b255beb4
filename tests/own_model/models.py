"""Tiny models as users have them: a residual network, a vision and a text transformer, and an encoder-decoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

CLASSES = 3


class Function(nn.Module):
    """A layer or a model that computes a function."""

    def __init__(self, of: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Any:
        return self.of(x)


class Scaled(nn.Module):
    """A layer that multiplies its inputs by a function of its one weight."""

    def __init__(self, scale: Tensor, of: Callable[[Tensor], Tensor] = torch.clone) -> None:
        super().__init__()
        self.scale, self.of = nn.Parameter(scale), of

    def forward(self, x: Tensor) -> Tensor:
        return self.of(self.scale) * x


class Block(nn.Module):
    """A basic block as in torchvision."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + identity)


class ResNet(nn.Module):
    """Stem, two stages, mean over places, ``fc``; its features are flattened by ``view``."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = Block(8, 8, 1)
        self.layer2 = Block(8, 16, 2)
        self.fc = nn.Linear(16 * 4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.adaptive_avg_pool2d(self.layer2(self.layer1(x)), 2)
        return self.fc(x.view(len(x), -1))


class ViT(nn.Module):
    """Patches, a class token, two encoder layers with attention, LayerNorm, ``head``."""

    def __init__(self, outputs: int = CLASSES, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


@dataclass
class Answer:
    """The output of a model of transformers."""

    logits: Tensor
    loss: Tensor | None = None


class Text(nn.Module):
    """Token and position embeddings, masked attention by hand, a pooled token; ``score`` is called on every token.

    Its control flow depends on data (``.item()``), which ``torch.func.vmap`` cannot batch.
    """

    def __init__(self, outputs: int = CLASSES, width: int = 16, vocabulary: int = 32, length: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.register_buffer("position_ids", torch.arange(length)[None], persistent=False)
        self.positions = nn.Embedding(length, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.score = nn.Linear(width, outputs, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Answer:
        if attention_mask.sum().item() == 0:
            raise ValueError("nothing to attend to")
        x = self.tokens(input_ids) + self.positions(self.position_ids[:, : input_ids.shape[1]])
        h = self.norm1(x)
        scores = self.query(h) @ self.key(h).transpose(1, 2) / h.shape[-1] ** 0.5
        scores = scores.masked_fill(attention_mask[:, None] == 0, torch.finfo(scores.dtype).min)
        x = x + self.dropout(scores.softmax(-1) @ self.value(h))
        x = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        each = self.score(x)
        last = attention_mask.sum(1).long() - 1
        return Answer(each[torch.arange(len(each), device=each.device), last])


class Answering(nn.Module):
    """An encoder-decoder like T5: both parts and the head share one weight of tokens; the answer is one token."""

    def __init__(self, width: int = 16, vocabulary: int = 32, *, tied: bool = True) -> None:
        super().__init__()
        self.shared = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleDict({"embed_tokens": self.shared, "block": nn.Linear(width, width)})
        self.decoder = nn.ModuleDict({"embed_tokens": self.shared, "query": nn.Linear(width, width)})
        self.norm, self.scale = nn.LayerNorm(width), width**-0.5
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.shared.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Answer:
        hidden = torch.tanh(self.encoder["block"](self.encoder["embed_tokens"](input_ids)))
        start = self.decoder["embed_tokens"](torch.zeros_like(input_ids[:, :1]))
        scores = self.decoder["query"](start) @ hidden.transpose(1, 2)
        weights = scores.masked_fill(attention_mask[:, None] == 0, -1e9).softmax(-1)
        normed = self.norm(start + weights @ hidden) * self.scale
        return Answer(self.lm_head(normed)[:, 0])


class Dictionaries(Dataset[dict[str, Tensor]]):
    """Rows as dictionaries with labels."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: values[row] for name, values in self.columns.items()}


def images(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return noisy images [row, 1, 8, 8] whose class is the place of a bright bar."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    x = torch.randn(rows, 1, 8, 8, generator=generator)
    for row, label in enumerate(labels.tolist()):
        x[row, 0, 2 * label + 1 : 2 * label + 3] += 0.6
    return x, labels


def texts(rows: int, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Return sentences of 4 to 8 tokens; each class has a token that its sentences contain more often."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    ids = torch.randint(1, 32, (rows, 8), generator=generator)
    marked = torch.rand(rows, 8, generator=generator) < 0.35
    ids = torch.where(marked, labels[:, None] + 1, ids)
    lengths = torch.randint(4, 9, (rows, 1), generator=generator)
    mask = (torch.arange(8)[None] < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, labels


def image_loader(rows: int = 300, seed: int = 0, batch: int = 50) -> Any:
    """Return a shuffled loader of tuples."""
    return DataLoader(TensorDataset(*images(rows, seed)), batch, shuffle=True)


def text_loader(rows: int = 300, seed: int = 0, batch: int = 50) -> Any:
    """Return a shuffled loader of dictionaries."""
    inputs, labels = texts(rows, seed)
    return DataLoader(Dictionaries(**inputs, labels=labels), batch, shuffle=True)


def trained(model: nn.Module, loader: Any, epochs: int, lr: float = 3e-3) -> nn.Module:
    """Train a model as its user would."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        for batch in loader:
            if isinstance(batch, dict):
                inputs = {name: values for name, values in batch.items() if name != "labels"}
                loss = F.cross_entropy(model(**inputs).logits, batch["labels"])
            else:
                loss = F.cross_entropy(model(batch[0]), batch[1])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()
