"""Mine rules for three graphs, rank their test triples with PyClause, and store both: python store_ranks.py [GRAPH ...].

Run by hand, with kgverify, PyClause (github.com/symbolic-kg/PyClause) and $KGVERIFY_DATA. A file of this folder has the rules in
AnyBURL's format, and for each aggregation the optimistic and the pessimistic rank of each query on its head and tail side.

PyClause lists the candidates of a query with their scores and rules, and breaks ties by frequency. Here, candidates tie if their
scores are equal and, except for the highest confidence, so are the confidences of all their rules. Known triples and entities
outside of the domains are no candidates, and all weights of rule types are 1.

For a query, PyClause applies a rule h(X,c) <= b(X,A) also if A is X or c, but neither with longer bodies nor when it counts the
predictions of the rule. Rules that predict more in this way are left out.
"""

import re
import sys
from collections import Counter, defaultdict
from itertools import groupby, islice, product
from pathlib import Path

import numpy as np
from c_clause import Loader, RankingHandler, RulesHandler
from clause import Options

import kgverify as kv
from kgverify.program.outcomes import Side

FOLDER = Path(__file__).parent
NUM_UNSEEN = 5
NUM_RULES = {"countries_s3": 200, "family": 1200, "wn18rr": 1000}
"""The number of mined rules that are kept of each graph."""


def spell(graph, split):
    """Return the triples of a split as names: (head, relation, tail)."""
    symbols = graph.program.symbols
    rows = graph.queries(split).tolist()
    return [(symbols.constants[h], symbols.predicates[r], symbols.constants[t]) for r, h, t in rows]


def propose(graph, facts):
    """Return rules in PyClause's syntax: chains of one and two atoms, and rules with constants."""
    predicates = graph.program.symbols.predicates
    rules = []
    for head in predicates:
        for body in predicates:
            rules += [f"{head}(X,Y) <= {body}(X,Y)"] * (head != body)
            rules.append(f"{head}(X,Y) <= {body}(Y,X)")
            for second, order in product(predicates, product((0, 1), repeat=2)):
                one = f"{body}(A,X)" if order[0] else f"{body}(X,A)"
                rules.append(f"{head}(X,Y) <= {one}, {second}({'Y,A' if order[1] else 'A,Y'})")
    properties, popular = {}, Counter()
    for h, r, t in facts:
        properties.setdefault(h, set()).add((r, t, "X,{}"))
        properties.setdefault(t, set()).add((r, h, "{},X"))
        popular.update([(r, h, "{},X"), (r, t, "X,{}")])
    frequent = {each for each, num in popular.items() if num >= 8}
    pairs, dangling, longer = Counter(), Counter(), Counter()
    for held in properties.values():
        for relation, constant, shape in sorted(held & frequent):
            head = f"{relation}({shape.format(constant)})".replace("X", "Y" if shape.startswith("{") else "X")
            variable = "Y" if shape.startswith("{") else "X"
            for r, c, s in sorted(held):
                if c != constant:
                    pairs[f"{head} <= {r}({s.format(c)})".replace("X", variable)] += (r, c, s) in frequent
                dangling[f"{head} <= {r}({s.format('A')})".replace("X", variable)] += 1
                for r2, c2, s2 in sorted(properties.get(c, set()) & frequent)[:20]:
                    if c2 != constant:
                        step = f"{r}({s.format('A')})".replace("X", variable)
                        longer[f"{head} <= {step}, {r2}({s2.format(c2).replace('X', 'A')})"] += 1
    for found in (pairs, dangling, longer):
        rules += [rule for rule, num in found.most_common(3000) if num >= 3]
    return list(dict.fromkeys(rules))


def options():
    """Return options by which PyClause applies every rule to every query, without weights."""
    chosen = Options()
    for kind in ("b", "c", "d", "z", "xxc", "xxd"):
        chosen.set(f"loader.{kind}_num_unseen", NUM_UNSEEN)
    settings = {
        "loader.d_weight": 1.0, "loader.z_weight": 1.0, "loader.b_max_branching_factor": -1,
        "ranking_handler.filter_w_data": False, "ranking_handler.topk": 10**9, "ranking_handler.disc_at_least": -1,
        "ranking_handler.adapt_topk": False, "ranking_handler.collect_rules": True, "rules_handler.collect_predictions": False,
    }  # fmt: skip
    for name, value in settings.items():
        chosen.set(name, value)
    for part in ("loader", "ranking_handler", "rules_handler"):
        chosen.set(f"{part}.verbose", False)
        chosen.set(f"{part}.num_threads", 1)
    return chosen


def mine(graph, facts, most):
    """Return the proposed rules of highest support, a share of each kind, with predictions and support in the facts."""
    rules = propose(graph, facts)
    chosen = options()
    loader = Loader(chosen.get("loader"))
    loader.load_data(facts)
    handler = RulesHandler(chosen.get("rules_handler"))
    handler.calculate_predictions(rules=rules, loader=loader)
    scored = [(num, true, rule) for rule, (num, true) in zip(rules, handler.get_statistics(), strict=True) if true >= 2]
    scored.sort(key=lambda each: (-each[1] / (each[0] + NUM_UNSEEN), each[2]))
    kinds = {}
    for each in scored:
        kinds.setdefault(find_kind(each[2]), []).append(each)
    share = most // len(kinds)
    usable = ((each for each in kinds[kind] if not predicts_more(each[2], facts)) for kind in sorted(kinds))
    return [each for some in usable for each in islice(some, share)]


def predicts_more(rule, facts):
    """Return whether a rule h(X,c) <= b(X,A) predicts an X for which A is always X or c."""
    if find_kind(rule) != ("U_d", 1):
        return False
    head, body = (re.findall(r"[(,]([^(),]+)(?=[,)])", side) for side in rule.split(" <= "))
    (constant,) = set(head) - set("XY")
    at = body.index("A")
    relation = rule.split(" <= ")[1].partition("(")[0]
    pairs = [(triple[2 - 2 * at], triple[2 * at]) for triple in facts if triple[1] == relation]
    apart = {one for one, other in pairs if other not in (one, constant)}
    return any(one not in apart for one, _ in pairs if one != constant)


def find_kind(rule):
    """Return AnyBURL's name of a rule's kind, and the number of its body atoms."""
    head, body = ({*re.findall(r"[(,]([^(),]+)(?=[,)])", side)} for side in rule.split(" <= "))
    has_constant = [any(not re.fullmatch("[A-Z]", term) for term in side) for side in (head, body)]
    return ("B" if not has_constant[0] else "U_c" if has_constant[1] else "U_d"), rule.count("(") - 1


def rank(graph, rules, aggregation):
    """Return the optimistic and pessimistic ranks of each query and side: int32 [n, 2, 2]."""
    chosen = options()
    chosen.set("ranking_handler.aggregation_function", "noisyor" if aggregation == "noisy-or" else "maxplus")
    loader = Loader(chosen.get("loader"))
    # Known triples are filtered below: PyClause would filter a query as well, if another split repeats it.
    loader.load_data(spell(graph, "train"), [], spell(graph, "test"))
    loader.load_rules(rules=[rule for _, _, rule in rules], stats=[[num, true] for num, true, _ in rules])
    ranker = RankingHandler(chosen.get("ranking_handler"))
    ranker.calculate_ranking(loader)
    symbols, queries = graph.program.symbols, graph.queries("test")
    known = {tuple(row) for row in graph.known_triples.tolist()}
    ranks = np.zeros((len(queries), 2, 2), np.int32)
    for side, direction in ((Side.HEAD, "head"), (Side.TAIL, "tail")):
        lists, used = ranker.get_ranking(direction, True), ranker.get_rules(direction, True)
        strength = {rule: true / (num + NUM_UNSEEN) for num, true, rule in rules}
        by_source = defaultdict(set)
        for atom in known:
            by_source[atom[0], atom[2 - side]].add(atom[1 + side])
        domains = {p: set(graph.argument_domain(p, side).tolist()) for p in np.unique(queries[:, 0]).tolist()}
        for i, (p, h, t) in enumerate(queries.tolist()):
            true, source = (h, t) if side == Side.HEAD else (t, h)
            relation, name = symbols.predicates[p], symbols.constants[source]
            order = []
            for candidate, score in lists.get(relation, {}).get(name, ()):
                entity = symbols.constant_ids[candidate]
                atom = (p, entity, t) if side == Side.HEAD else (p, h, entity)
                if entity == true or (entity in domains[p] and atom not in known):
                    rest = tuple(sorted(strength[rule] for rule in used[relation][name][candidate]))
                    order.append((entity, (score, () if aggregation == "max" else rest)))
            num_known = len((by_source[p, source] - {true}) & domains[p])
            above, ranks[i, side] = 0, (len(order) + 1, len(domains[p] | {true}) - num_known)
            for _, tied in groupby(order, key=lambda each: each[1]):
                entities = [entity for entity, _ in tied]
                if true in entities:
                    ranks[i, side] = above + 1, above + len(entities)
                above += len(entities)
    return ranks


def main(names):
    """Store the rules and ranks of the named graphs."""
    for name in names:
        graph = kv.load_graph(name)
        rules = mine(graph, spell(graph, "train"), NUM_RULES[name])
        text = "".join(f"{num}\t{true}\t{true / num}\t{rule}\n" for num, true, rule in rules)
        ranks = {how.replace("-", "_"): rank(graph, rules, how) for how in ("max", "max-plus", "noisy-or")}
        np.savez_compressed(FOLDER / f"{name}.npz", rules=np.frombuffer(text.encode(), np.uint8), **ranks)
        kinds = Counter(find_kind(rule) for _, _, rule in rules)
        print(name, len(rules), dict(kinds), {how: float((2 / each.sum(2)).mean()) for how, each in ranks.items()})


if __name__ == "__main__":
    main(sys.argv[1:] or list(NUM_RULES))
