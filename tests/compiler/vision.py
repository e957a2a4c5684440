"""Small models of images and of tables, written by hand as capture names their dims."""

from __future__ import annotations

from wattree.graph import (
    Block,
    BlockInstance,
    DimRole,
    Extent,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
    SlidingWindow,
    Tensor,
    TensorRole,
)

__all__ = ["dlrm", "mlp", "vgg"]

BATCH = IterationDim(name="batch", extent=Extent(batch=1))
IMAGE = ("batch", "out", "height", "width")


def _dim(name: str, size: float, role: DimRole = DimRole.SPLITTABLE) -> IterationDim:
    return IterationDim(name=name, extent=Extent(coefficient=size), role=role)


def _positions(rows: int) -> tuple[IterationDim, ...]:
    return _dim("height", rows), _dim("width", rows)


def conv(
    path: str, reads: str, *, channels: tuple[int, int], rows: int, kernel: int = 3, stride: int = 1
) -> Operator:
    """Return a convolution that writes `rows` rows of a square image to `path`."""
    before, after = channels
    taps = _dim("taps", kernel**2, DimRole.OPAQUE)
    into = _dim("in", before, DimRole.CONTRACTED)
    return Operator(
        path=path,
        kind=OperatorKind.CONVOLUTION,
        function="conv2d",
        dims=(BATCH, _dim("out", after), *_positions(rows), into, taps),
        inputs=(
            Operand(tensor=reads, dims=("batch", "in", "height", "width"), fraction=stride**2),
        ),
        outputs=(Operand(tensor=path, dims=IMAGE),),
        parameters=(
            Parameter(
                name=f"{path}.weight",
                dims=("out", "in", "taps"),
                elements=before * after * kernel**2,
            ),
        ),
        saved=(reads,),
        window=SlidingWindow(kernel=(kernel,) * 2, stride=(stride,) * 2, dilation=(1, 1)),
    )


def by_element(path: str, function: str, reads: str, *, channels: int, rows: int) -> Operator:
    """Return an element-wise function of an image."""
    return Operator(
        path=path,
        kind=OperatorKind.ELEMENTWISE,
        function=function,
        dims=(BATCH, _dim("out", channels), *_positions(rows)),
        inputs=(Operand(tensor=reads, dims=IMAGE),),
        outputs=(Operand(tensor=path, dims=IMAGE),),
        saved=(path,),
    )


def batch_norm(path: str, reads: str, *, channels: int, rows: int) -> Operator:
    """Return a batch norm of an image."""
    return Operator(
        path=path,
        kind=OperatorKind.BATCH_NORM,
        function="batch_norm",
        dims=(BATCH, _dim("out", channels), *_positions(rows)),
        inputs=(Operand(tensor=reads, dims=IMAGE),),
        outputs=(Operand(tensor=path, dims=IMAGE),),
        parameters=(Parameter(name=f"{path}.weight", dims=("out",), elements=2 * channels),),
        saved=(reads,),
    )


def pool(path: str, reads: str, *, channels: int, rows: int) -> Operator:
    """Return a maximum over 2 x 2 that writes `rows` rows."""
    return Operator(
        path=path,
        kind=OperatorKind.POOL,
        function="max_pool",
        dims=(BATCH, _dim("out", channels), *_positions(rows)),
        inputs=(Operand(tensor=reads, dims=IMAGE, fraction=4.0),),
        outputs=(Operand(tensor=path, dims=IMAGE),),
        saved=(reads,),
        window=SlidingWindow(kernel=(2, 2), stride=(2, 2), dilation=(1, 1)),
    )


def linear(
    path: str,
    reads: str,
    *,
    features: tuple[int, int],
    role: TensorRole | None = None,
    read_as: tuple[tuple[str, int], ...] = (),
) -> Operator:
    """Return a fully connected layer; `read_as` are the dims of an image that it flattens."""
    before, after = features
    contracted = tuple(_dim(n, size, DimRole.CONTRACTED) for n, size in read_as)
    contracted = contracted or (_dim("in", before, DimRole.CONTRACTED),)
    names = tuple(dim.name for dim in contracted)
    return Operator(
        path=path,
        kind=OperatorKind.MATMUL,
        function="linear",
        dims=(BATCH, _dim("out", after), *contracted),
        inputs=(Operand(tensor=reads, dims=("batch", *names)),),
        outputs=(Operand(tensor=path, dims=("batch", "out")),),
        parameters=(
            Parameter(name=f"{path}.weight", dims=("out", *names), elements=before * after),
        ),
        saved=(reads,),
        role=role,
    )


def activation(path: str, reads: str, *, features: int) -> Operator:
    """Return an element-wise function of feature vectors."""
    return Operator(
        path=path,
        kind=OperatorKind.ELEMENTWISE,
        function="relu",
        dims=(BATCH, _dim("out", features)),
        inputs=(Operand(tensor=reads, dims=("batch", "out")),),
        outputs=(Operand(tensor=path, dims=("batch", "out")),),
        saved=(path,),
    )


def loss(reads: str, *, classes: int) -> Operator:
    """Return a cross-entropy over classes."""
    return Operator(
        path="loss",
        kind=OperatorKind.CROSS_ENTROPY,
        function="cross_entropy",
        dims=(BATCH, _dim("out", classes)),
        inputs=(Operand(tensor=reads, dims=("batch", "out")),),
        outputs=(Operand(tensor="loss", dims=("batch",)),),
        saved=(reads,),
    )


def vgg(*, rows: int = 32, channels: int = 16, classes: int = 16, norm: bool = False) -> ModelGraph:
    """Return convolutions, a pool, a convolution of stride 2, and two fully connected layers."""
    c, half, quarter = channels, rows // 2, rows // 4
    features = [conv("0", "images", channels=(3, c), rows=rows)]
    last = "0"
    if norm:
        features.append(batch_norm("norm", last, channels=c, rows=rows))
        last = "norm"
    features += [
        by_element("1", "relu", last, channels=c, rows=rows),
        conv("2", "1", channels=(c, c), rows=rows, kernel=5),
        by_element("3", "relu", "2", channels=c, rows=rows),
        pool("4", "3", channels=c, rows=half),
        conv("5", "4", channels=(c, 2 * c), rows=quarter, stride=2),
        by_element("6", "relu", "5", channels=2 * c, rows=quarter),
    ]
    flat = (("in", 2 * c), ("in_1", quarter), ("in_2", quarter))
    width = 2 * c * quarter**2
    classifier = [
        linear("0", "x", features=(width, 64), read_as=flat),
        activation("1", "0", features=64),
        linear("2", "1", features=(64, classes)),
        loss("2", classes=classes),
    ]
    image = tuple(Extent(coefficient=size) for size in (2 * c, quarter, quarter))
    return ModelGraph(
        name="small vgg",
        architecture="vgg",
        blocks={
            "features": Block(
                name="features", operators=tuple(features), output="6", given=("images",)
            ),
            "classifier": Block(
                name="classifier",
                operators=tuple(classifier),
                inputs=(Tensor(name="x", extents=(Extent(batch=1), *image)),),
            ),
        },
        instances=(
            BlockInstance(path="features", block="features", is_layer=True),
            BlockInstance(path="classifier", block="classifier", is_layer=True),
        ),
    )


def mlp(layers: int = 4, *, width: int = 32) -> ModelGraph:
    """Return pairs of fully connected layers that say what part they play."""
    hidden = (Tensor(name="x", extents=(Extent(batch=1), Extent(coefficient=width))),)
    pair = Block(
        name="pair",
        operators=(
            linear("up", "x", features=(width, 4 * width), role=TensorRole.COLUMN),
            activation("act", "up", features=4 * width),
            linear("down", "act", features=(4 * width, width), role=TensorRole.ROW),
        ),
        inputs=hidden,
        output="down",
    )
    first = Block(
        name="first",
        operators=(linear("fc", "samples", features=(width, width)),),
        output="fc",
        given=("samples",),
    )
    head = Block(
        name="top",
        operators=(linear("fc", "x", features=(width, width)), loss("fc", classes=width)),
        inputs=hidden,
    )
    return ModelGraph(
        name="small mlp",
        architecture="mlp",
        blocks={"first": first, "pair": pair, "top": head},
        instances=(
            BlockInstance(path="model.first", block="first", is_layer=False),
            *(
                BlockInstance(path=f"model.pairs.{i}", block="pair", is_layer=True)
                for i in range(layers)
            ),
            BlockInstance(path="model.top", block="top", is_layer=False),
        ),
    )


def table(path: str, *, rows: int, width: int, bag: int = 1) -> Operator:
    """Return a table of which each sample looks up `bag` rows, summed."""
    return Operator(
        path=path,
        kind=OperatorKind.EMBEDDING,
        function="embedding_bag",
        dims=(
            BATCH,
            _dim("out", width),
            _dim("vocab", rows, DimRole.CONTRACTED),
            _dim("bag", bag, DimRole.OPAQUE),
        ),
        inputs=(Operand(tensor=f"{path}.indices", dims=("batch", "bag"), element_bytes=8.0),),
        outputs=(Operand(tensor=path, dims=("batch", "out")),),
        parameters=(
            Parameter(name=f"{path}.weight", dims=("vocab", "out"), elements=rows * width),
        ),
    )


def dlrm(
    sizes: tuple[int, ...] = (4096, 512, 512, 64), *, width: int = 16, first_bag: int = 1
) -> ModelGraph:
    """Return a bottom MLP, tables of `sizes` rows, their concatenation, and a top MLP.

    Of the first table each sample looks up `first_bag` rows.
    """
    tables = [
        table(f"tables.{i}", rows=rows, width=width, bag=1 if i else first_bag)
        for i, rows in enumerate(sizes)
    ]
    parts = [*(t.path for t in tables), "bottom.1"]
    total = width * len(parts)
    together = Operator(
        path="cat",
        kind=OperatorKind.COPY,
        function="cat",
        dims=(BATCH, _dim("out", total, DimRole.OPAQUE)),
        inputs=tuple(
            Operand(tensor=part, dims=("batch", "out"), fraction=width / total) for part in parts
        ),
        outputs=(Operand(tensor="cat", dims=("batch", "out")),),
    )
    operators = (
        linear("bottom.0", "dense", features=(width, width)),
        activation("bottom.1", "bottom.0", features=width),
        *tables,
        together,
        linear("top.0", "cat", features=(total, 32)),
        activation("top.1", "top.0", features=32),
        linear("top.2", "top.1", features=(32, 1)),
        loss("top.2", classes=1),
    )
    return ModelGraph(
        name="small dlrm",
        architecture="dlrm",
        blocks={
            "dlrm": Block(
                name="dlrm",
                operators=operators,
                given=("dense", *(f"{t.path}.indices" for t in tables)),
            )
        },
        instances=(BlockInstance(path="dlrm", block="dlrm", is_layer=False),),
    )
