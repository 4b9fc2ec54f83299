% The programs of docs/found.md, each with a query and its right answers.

% ProbLog 2.3.0: A query with a repeated variable has answers that are not its instances
s(a).
t(d, Z) :- s(Z).
?- t(X, X).  % none

% ProbLog 2.3.0: A stratified program is refused for a cycle through negation
r(b).
r(X) :- r(X), \+ q.
q :- q.
?- r(Y).  % r(b)

% pyDatalog 0.22.4: Recursion through three subgoals never ends
p(1).
p(X) :- q(X).
q(X) :- r(X).
r(X) :- p(X).
?- p(X).  % p(1)

% pyDatalog 0.22.4: Recursion through three subgoals never ends
t(2, 1).
t(Z, Y) :- t(X, Z), t(Z, Y).
?- t(1, X).  % none

% pyDatalog 0.22.4: A repeated variable in a tuple matches different elements
p(f(1, 1)).
p(f(1, 3)).
?- p(f(X, X)).  % p(f(1,1))

% miniKanren 1.0.5: `neq` of tuples rejects tuples that differ in one place
d(1, 3).
same(1, 2).
p(X, Y) :- d(X, Y), \+ same(X, Y).
?- p(X, Y).  % p(1,3)

% miniKanren 1.0.5: Unification of sets depends on their order in memory
e(1).
e(2).
same(X, X) :- e(X).
in(X, Y, Z) :- same(X, Y), e(Z).
in(X, Y, Z) :- same(X, Z), e(Y).
p(X, Y) :- in(1, 2, Y), in(X, 2, Y), in(2, 1, X), in(Y, 1, X).
?- p(X, Y).  % p(2,1)

% miniKanren 1.0.5: A fact with a variable disappears when another fact is added
person(ann).
likes(X, water) :- person(X).
likes(ann, tea).
?- likes(ann, Y).  % likes(ann,tea); likes(ann,water)

% pytholog 2.4.1: A query with two proofs is answered No
r(a).
s(a).
p(X) :- r(X).
p(X) :- s(X).
?- p(a).  % p(a)

% pytholog 2.4.1: A body atom that does not unify with a fact succeeds
q(a, b).
p(X) :- q(X, X).
?- p(X).  % none

% pytholog 2.4.1: The memory of queries confuses different queries
q(a, b).
p(X, Y) :- q(X, Y).
?- p(X, X).  % none

% pytholog 2.4.1: A remembered answer is changed by the next query
q(a, b).
?- q(Y, X).  % q(a,b)

% pytholog 2.4.1: A fact added after a query is not seen
p(a).
p(b).
?- p(X).  % p(a); p(b)

% pytholog 2.4.1: A fact whose first argument is a variable is missed
r(b).
q(X, c) :- r(X).
q(b, d).
p(X, Y) :- r(X), q(X, Y).
?- p(b, Y).  % p(b,c); p(b,d)

% pytholog 2.4.1: A variable whose name starts with Z, and is longer, is a constant
q(a).
p(Zone) :- q(Zone).
?- p(a).  % p(a)

% pytholog 2.4.1: A rule is split at a variable whose name contains OR or AND
q(a).
p(DOOR) :- q(DOOR).
?- p(a).  % p(a)

% pytholog 2.4.1: `neq` of equal terms succeeds
q(a, a).
p(X) :- q(X, Y), X \== Y.
?- p(X).  % none

% pytholog 2.4.1: A query of an unknown predicate raises TypeError
q(a).
p(X) :- r(X).
?- p(a).  % none
